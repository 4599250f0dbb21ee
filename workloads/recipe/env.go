package recipe

import (
	"slices"
	"strconv"
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
	"github.com/sparkrun/sparkrun/workloads"
)

func itoa(n int) string { return strconv.Itoa(n) }

var variable = plain.Pattern(`^[A-Za-z_][A-Za-z0-9_]*$`)

// whole is a value that is one variable of the caller's and nothing else.
var whole = plain.Pattern(`^\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})$`)

// ofMachine are variables that differ from machine to machine: sparkrun finds them on each. The
// workload leaves out a recipe's VLLM_HOST_IP and its like, and says so.
var ofMachine = []string{
	"NCCL_IB_HCA", "NCCL_IB_GID_INDEX", "NCCL_SOCKET_IFNAME", "NCCL_NET", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME",
	"MN_IF_NAME", "UCX_NET_DEVICES", "OMPI_MCA_btl_tcp_if_include", "MASTER_ADDR", "MASTER_PORT",
	"RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE",
}

// modelSecrets are the caller's secrets that a recipe may take without consent, as a model is
// fetched with them; harmless are the other variables.
var (
	modelSecrets = []string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}
	harmless     = []string{"HOME", "USER"}
)

// given tells whether a list of NAME, NAME=VALUE or NAME=FILE has a name.
func given(all []string, name string) bool {
	return slices.ContainsFunc(all, func(s string) bool { s, _, _ = strings.Cut(s, "="); return s == name })
}

// env are the recipe's variables. Those before the command, which are there already, count more.
func (r Recipe) env(out *Launch, o Options) error {
	before := out.Serve.Env
	out.Serve.Env = nil
	for i, v := range slices.Concat(r.Env, settingsOf(before)) {
		field := "env." + v.Name
		switch {
		case !variable().MatchString(v.Name):
			return invalid(field, "a variable's name is letters, digits and '_', and begins with no digit")
		case given(o.Env, v.Name) || given(o.Secrets, v.Name):
			continue // the user's own
		case workloads.IsSecret(v.Name):
			if err := out.secret(field, v, o.Environ); err != nil {
				return err
			}
			continue
		case slices.Contains(ofMachine, v.Name):
			out.note(field, "%s on every machine, in place of what each finds for itself", v.Value)
		}
		if i < len(r.Env) { // of the others a shell has made what they are
			var err error
			if v.Value, err = r.expand(out, field, v.Value, o.Environ); err != nil {
				return err
			}
		}
		out.Serve.Env = append(out.Serve.Env, v.Name+"="+v.Value)
	}
	return nil
}

func settingsOf(env []string) (out []Setting) {
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		out = append(out, Setting{name, value})
	}
	return out
}

// secret is a variable whose name says that it holds one: the caller's own is given as such, and
// one that stands in the recipe is refused.
func (l *Launch) secret(field string, v Setting, environ []string) error {
	m := whole().FindStringSubmatch(v.Value)
	switch {
	case m == nil:
		return invalid(field, "its name says that it holds a secret, which the cluster's record would keep: give it with "+
			"--secret %s, which takes the place of the recipe's", v.Name)
	case m[1]+m[2] != v.Name:
		return invalid(field, "it takes %s of yours: give it with --secret %s=FILE, which takes the place of the recipe's",
			v.Value, v.Name)
	}
	if _, ok := workloads.Lookup(environ, v.Name); !ok {
		l.note(field, "left out: it is not set here")
		return nil
	}
	if !slices.Contains(modelSecrets, v.Name) {
		l.asks("%s, which takes your %s into its image (--secret %[2]s, or --env, takes its place)", field, v.Name)
	}
	l.Secrets = append(l.Secrets, v.Name)
	l.note(field, "yours is given to the ranks as a secret")
	return nil
}

// expand puts the caller's variables into a value of version 2, as that tool does on the machine
// where it is called. In version 1 a shell in the container would, which there is not.
func (r Recipe) expand(out *Launch, field, value string, environ []string) (string, error) {
	if r.Version == "1" {
		if strings.ContainsAny(value, "$`") {
			return "", invalid(field, "%s: a shell in the container would fill it in, and there is none: "+
				"give it a value with --env", value)
		}
		return value, nil
	}
	var err error
	text := expansion().ReplaceAllStringFunc(value, func(m string) string {
		name := strings.Trim(m, "${}")
		v, ok := workloads.Lookup(environ, name)
		switch {
		case !ok:
			out.note(field, "%s is not set here, and stays as it is", m)
			return m
		case workloads.IsSecret(name):
			err = invalid(field, "it takes %s of yours, a secret by its name, which the cluster's record would keep: "+
				"give it another value with --env", m)
		}
		if !slices.Contains(harmless, name) {
			out.asks("%s, which takes your %s into its image (--env takes its place)", field, name)
		}
		out.note(field, "%s is filled in with yours", m)
		return v
	})
	return text, err
}

var expansion = plain.Pattern(`\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})`)
