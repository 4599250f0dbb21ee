package help

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Output is where help is written.
type Output struct {
	TTY   bool   // standard output is a terminal
	Pager string // a shell command that shows a chapter on a terminal; empty: none
	Usage func(format string, args ...any) error
}

func newCommand(o Output) *cobra.Command {
	return &cobra.Command{
		Use:   "help [CHAPTER | COMMAND...]",
		Short: "Read the guide, or a command's help",
		Long: `Shows a chapter of the guide, or the help of a command; alone it lists both. A word
that is a chapter and a command is the chapter: sparkrun COMMAND --help is the command's.

On a terminal $PAGER shows a chapter, where that is set. The chapters are manual pages,
too, where a package has installed them: man sparkrun-serving.`,
		Example: `  sparkrun help
  sparkrun help troubleshooting
  sparkrun help launch vllm`,
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil }, // help needs no cluster
		ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			if len(args) == 0 {
				return o.show(cmd.OutOrStdout(), Of(root, true))
			}
			var words []string
			for _, t := range Topics() {
				if len(args) == 1 && t.Name == args[0] {
					return o.show(cmd.OutOrStdout(), t.Text)
				}
				words = append(words, t.Name)
			}
			if c, rest, err := root.Find(args); err == nil && c != root && len(rest) == 0 {
				_, err := io.WriteString(cmd.OutOrStdout(), Of(c, false))
				return err
			}
			about := "; chapters: " + strings.Join(words, ", ")
			for _, c := range root.Commands() {
				if c.IsAvailableCommand() {
					words = append(words, c.Name())
				}
			}
			if meant := Near(words, args[0]); len(meant) > 0 {
				about = ": did you mean " + strings.Join(meant, " or ") + "?"
			}
			return o.Usage("no chapter or command %q%s", strings.Join(args, " "), about)
		},
	}
}

// complete offers topics and commands, and after a command its subcommands.
func complete(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	above, _, err := cmd.Root().Find(args)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	if len(args) == 0 {
		for _, t := range Topics() {
			out = append(out, t.Name+"\t"+t.Title)
		}
	}
	for _, c := range above.Commands() {
		isTopic := slices.ContainsFunc(out, func(t string) bool { return strings.HasPrefix(t, c.Name()+"\t") })
		if c.IsAvailableCommand() && !isTopic {
			out = append(out, c.Name()+"\t"+c.Short)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// show writes text, through the pager if it goes to a terminal.
func (o Output) show(out io.Writer, text string) error {
	if !o.TTY || o.Pager == "" {
		_, err := io.WriteString(out, text)
		return err
	}
	pager := exec.Command("sh", "-c", o.Pager)
	pager.Stdin, pager.Stdout, pager.Stderr = strings.NewReader(text), out, os.Stderr
	if err := pager.Run(); err != nil {
		return fmt.Errorf("show the chapter by $PAGER %q: %w", o.Pager, err)
	}
	return nil
}
