package recipe

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// words reads text as bash does and gives the words of its one command, with the variables that
// are set before it. What only a shell can do (pipes, variables, two commands) is an error
// that names it: sparkrun starts a server itself, so that it can add to its arguments, and so
// that signals reach it.
func words(field, text string) (command []string, env []Setting, notes []Note, err error) {
	l := lexer{field: field, text: text}
	if err := l.run(); err != nil {
		return nil, nil, nil, err
	}
	if l.mended > 0 {
		notes = append(notes, Note{field, "a space behind a line's last backslash is passed over"})
	}
	for i, st := range l.statements {
		last := i == len(l.statements)-1
		line := st[0].line
		rest := st
		switch first := st[0].text; {
		case first == "export" && len(st) > 1:
			if rest = assignments(st[1:], &env); len(rest) > 0 {
				return nil, nil, nil, l.script(line, "`export "+rest[0].text+"`")
			}
			continue
		case first == "set" && len(st) > 1 && strings.HasPrefix(st[1].text, "-"):
			continue
		}
		if rest = assignments(rest, &env); len(rest) > 0 && rest[0].text == "exec" {
			rest = rest[1:]
		}
		if len(rest) > 0 && rest[0].text == "env" {
			rest = assignments(rest[1:], &env)
		}
		switch {
		case !last && len(rest) > 0:
			return nil, nil, nil, l.script(line, "`"+head(rest[0].text)+"`, and another command in line "+
				strconv.Itoa(l.statements[i+1][0].line))
		case len(rest) == 0:
			return nil, nil, nil, l.script(line, "a variable of the shell's own")
		}
		for _, w := range rest {
			command = append(command, w.text)
		}
	}
	if len(command) == 0 {
		return nil, nil, nil, invalid(field, "there is none")
	}
	return command, env, notes, nil
}

// word is one of a command, quotes taken off. Bare is how much of its begin was not quoted.
type word struct {
	text string
	bare int
	line int
}

var assignment = plain.Pattern(`^[A-Za-z_][A-Za-z0-9_]*=`)

// assignments takes NAME=VALUE words off the begin of a command.
func assignments(st []word, env *[]Setting) []word {
	for len(st) > 0 {
		m := assignment().FindString(st[0].text)
		if m == "" || len(m) > st[0].bare {
			break
		}
		*env = append(*env, Setting{m[:len(m)-1], st[0].text[len(m):]})
		st = st[1:]
	}
	return st
}

type lexer struct {
	field, text string
	at, line    int
	statements  [][]word
	mended      int // line ends that had a space before them

	st     []word
	cur    []byte
	in     bool // a word has begun
	bare   int  // bytes of cur before the first quote; -1: all of them so far
	braces int  // open braces of cur that are not quoted
	comma  bool // or two dots, within them
}

func (l *lexer) script(line int, what string) error {
	return invalid(l.field, "line %d: %s: this takes a shell, and sparkrun starts a server without one: write one "+
		"command, or run it with `sparkrun launch exec --image IMAGE -- bash -c COMMAND`", line, what)
}

func (l *lexer) endWord() {
	if l.in {
		if l.bare < 0 {
			l.bare = len(l.cur)
		}
		l.st = append(l.st, word{string(l.cur), l.bare, l.line})
	}
	l.cur, l.in, l.bare, l.braces, l.comma = nil, false, -1, 0, false
}

func (l *lexer) endStatement() {
	if l.endWord(); len(l.st) > 0 {
		l.statements = append(l.statements, l.st)
	}
	l.st = nil
}

func (l *lexer) add(b ...byte) {
	l.cur, l.in = append(l.cur, b...), true
}

// quoted begins the part of a word from which on it is no variable's name.
func (l *lexer) quoted() {
	if l.in = true; l.bare < 0 {
		l.bare = len(l.cur)
	}
}

// opensValue tells whether the word so far is NAME=, or NAME=...: of several folders, behind which
// bash reads a ~ as a home, even in an argument.
func (l *lexer) opensValue() bool {
	m := assignment().Find(l.cur)
	return m != nil && (l.bare < 0 || len(m) <= l.bare) && strings.IndexByte("=:", l.cur[len(l.cur)-1]) >= 0
}

func (l *lexer) run() error {
	l.line, l.bare = 1, -1
	for l.at < len(l.text) {
		if err := l.step(); err != nil {
			return err
		}
	}
	l.endStatement()
	return nil
}

func (l *lexer) step() error {
	c := l.text[l.at]
	l.at++
	switch c {
	case ' ', '\t', '\r':
		l.endWord()
	case '\n':
		l.endStatement()
		l.line++
	case '\\':
		return l.escape()
	case '\'':
		end := strings.IndexByte(l.text[l.at:], '\'')
		if end < 0 {
			return invalid(l.field, "line %d: a ' that is not closed", l.line)
		}
		l.quoted()
		l.add([]byte(l.text[l.at : l.at+end])...)
		l.line += strings.Count(l.text[l.at:l.at+end], "\n")
		l.at += end + 1
	case '"':
		return l.double()
	case '#':
		if l.in {
			l.add(c)
			break
		}
		if end := strings.IndexByte(l.text[l.at:], '\n'); end >= 0 {
			l.at += end
		} else {
			l.at = len(l.text)
		}
	case ';':
		l.endStatement()
	case '&':
		if !strings.HasPrefix(l.text[l.at:], "&") {
			return l.script(l.line, "`&`")
		}
		l.at++
		l.endStatement()
	case '|', '<', '>', '(', ')', '`', '$':
		return l.script(l.line, "`"+head(l.text[l.at-1:])+"`")
	case '~':
		if !l.in || l.opensValue() {
			return l.script(l.line, "`~`")
		}
		l.add(c)
	case '{':
		l.braces++
		l.add(c)
	case ',':
		l.comma = l.comma || l.braces > 0
		l.add(c)
	case '.':
		l.comma = l.comma || l.braces > 0 && len(l.cur) > 0 && l.cur[len(l.cur)-1] == '.'
		l.add(c)
	case '}':
		if l.braces > 0 {
			if l.comma {
				return l.script(l.line, "`"+head(string(l.cur))+"}`, whose braces are not quoted")
			}
			l.braces--
		}
		l.add(c)
	default:
		l.add(c)
	}
	return nil
}

// escape is behind a backslash outside of quotes. At the end of a line both are nothing; a
// space between them, which makes it something else to a shell, is a slip that both tools
// forgive or trip over.
func (l *lexer) escape() error {
	rest := strings.TrimLeft(l.text[l.at:], " \t\r")
	switch {
	case l.at == len(l.text) || rest == "":
		l.at = len(l.text)
	case rest[0] == '\n':
		if rest[0] != l.text[l.at] {
			l.mended++
		}
		l.at, l.line = len(l.text)-len(rest)+1, l.line+1
	default:
		l.quoted()
		l.add(l.text[l.at])
		l.at++
	}
	return nil
}

func (l *lexer) double() error {
	l.quoted()
	for l.at < len(l.text) {
		c := l.text[l.at]
		l.at++
		switch c {
		case '"':
			return nil
		case '$', '`':
			return l.script(l.line, "`"+head(l.text[l.at-1:])+"`")
		case '\\':
			if l.at == len(l.text) {
				break
			}
			if next := l.text[l.at]; slices.Contains([]byte("$`\"\\"), next) {
				c = next
				l.at++
			} else if next == '\n' {
				l.at, l.line = l.at+1, l.line+1
				continue
			}
		case '\n':
			l.line++
		}
		l.add(c)
	}
	return invalid(l.field, "line %d: a \" that is not closed", l.line)
}
