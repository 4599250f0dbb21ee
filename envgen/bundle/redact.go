package bundle

import (
	"strings"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// Redacted replaces a secret.
const Redacted = "[redacted]"

// Rules tells people what Redact and SecretName do.
const Rules = "Taken out: sparkrun's tokens, private keys, passwords in URLs, bearer tokens, access tokens of " +
	"known forms, " +
	"and the values of variables, flags and fields whose names say token, secret, password, credential or key. " +
	"Left in, because a report is of no use without: host names, users' names, IP addresses, MACs, GUIDs and GIDs, " +
	"programs and arguments of jobs."

// secretWord is in the names of secrets. "key" alone must be a word of its own: NCCL_KEYS is none, API_KEY is.
const secretWord = `(?:[A-Za-z0-9_.-]*(?:token|secret|passw(?:or)?d|passphrase|credential|api[-_]?key)[A-Za-z0-9_.-]*|(?:[A-Za-z0-9_.-]*[-_.])?key)`

// wordStart also sees a word after a line break that JSON has escaped.
const wordStart = `(\\[nrt]|\b)`

// quote is optional; it is escaped as often as JSON is nested in JSON.
const quote = `((?:\\*"|')?)`

var (
	secretName = plain.Pattern(`(?i)^-*` + secretWord + `$`)
	// Name, the quote that closes it, sign, the quote that opens the value, the value, and the quote that closes it. A
	// value ends where a shell, JSON or a query string would end it.
	assigned  = plain.Pattern(`(?i)(\b` + secretWord + `)` + quote + `(\s*[=:]\s*)` + quote + `([^\s"'\\,;&]+)` + quote)
	pemBlock  = plain.Pattern(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|$)`)
	bearer    = plain.Pattern(`(?i)` + wordStart + `(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}`)
	userinfo  = plain.Pattern(`(://[^\s/:@"]*):[^\s/@"]+@`)
	knownForm = plain.Pattern(wordStart + `(?:spk[0-9]+\.|hf_|gh[a-z]_|github_pat_|nvapi-|sk-|glpat-|xox[a-z]-|AKIA)[A-Za-z0-9._-]{8,}`)
)

// SecretName reports whether a variable, flag or field of that name holds a secret. A value alone cannot be
// recognised.
func SecretName(name string) bool { return secretName().MatchString(name) }

// Redact removes the secrets from a text such as a log. It keeps JSON well-formed.
func Redact(text []byte) []byte {
	text = pemBlock().ReplaceAll(text, []byte(Redacted))
	text = bearer().ReplaceAll(text, []byte("$1$2 "+Redacted))
	text = userinfo().ReplaceAll(text, []byte("$1:"+Redacted+"@"))
	text = knownForm().ReplaceAll(text, []byte("${1}"+Redacted))
	var out []byte
	at := 0
	for _, m := range assigned().FindAllSubmatchIndex(text, -1) {
		part := func(i int) string { return string(text[m[2*i]:m[2*i+1]]) }
		out = append(append(out, text[at:m[4]]...), redactValue(part(2), part(3), part(4), part(5), part(6))...)
		at = m[1]
	}
	return append(out, text[at:]...)
}

// redactValue removes the value from a match of assigned.
func redactValue(nameQuote, sign, open, value, end string) string {
	switch {
	case open != "":
		// What looks like an opening quote may close a text that ends with the sign:
		// {"text":"TOKEN="}
		if strings.ContainsRune("]}:", rune(value[0])) && (end != open || strings.Trim(value, "]}:[{") == "") {
			return nameQuote + sign + open + value + end
		}
	case nameQuote != "": // JSON's numbers may be secrets, its words and brackets are not
		bare := strings.TrimRight(value, "]}")
		switch {
		case bare == "", bare == "null", bare == "true", bare == "false", bare[0] == '{', bare[0] == '[':
			return nameQuote + sign + value + end
		}
		return nameQuote + sign + nameQuote + Redacted + nameQuote + value[len(bare):] + end
	}
	return nameQuote + sign + open + Redacted + end
}

// RedactArgs removes the secrets from a command line: what Redact finds in each argument, and the value after a
// flag whose name is that of a secret.
func RedactArgs(args []string) []string {
	out := make([]string, 0, len(args))
	hide := false
	for _, arg := range args {
		flag := strings.HasPrefix(arg, "-")
		if hide && !flag {
			out, hide = append(out, Redacted), false
			continue
		}
		hide = flag && SecretName(arg)
		out = append(out, string(Redact([]byte(arg))))
	}
	return out
}
