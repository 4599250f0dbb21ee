package container

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
)

// hubKey is the name of Docker Hub's entry in a client's configuration.
const hubKey = "https://index.docker.io/v1/"

// credentials is the engine's form of them.
type credentials struct {
	Username      string `json:"username,omitempty"`
	Password      string `json:"password,omitempty"`
	IdentityToken string `json:"identitytoken,omitempty"`
	ServerAddress string `json:"serveraddress,omitempty"`
}

// Auth gives the credentials of a user's ~/.docker/config.json for an image's registry, as
// Pull takes them; empty: there are none. Credential helpers are not run: such a pull is
// anonymous.
func Auth(config []byte, ref string) (string, error) {
	if isID(ref) { // it belongs to no registry
		return "", nil
	}
	var c struct {
		Auths map[string]struct {
			Auth          string `json:"auth"`
			IdentityToken string `json:"identitytoken"`
		} `json:"auths"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return "", fmt.Errorf("read ~/.docker/config.json: %w", err)
	}
	domain := registryOf(ref)
	keys := []string{domain, "https://" + domain}
	if domain == "docker.io" {
		keys = append(keys, hubKey)
	}
	for _, k := range keys {
		a, ok := c.Auths[k]
		if !ok || a.Auth == "" && a.IdentityToken == "" {
			continue
		}
		plain, err := base64.StdEncoding.DecodeString(a.Auth)
		if err != nil {
			return "", fmt.Errorf("read ~/.docker/config.json: the entry of %s: %w", k, err)
		}
		user, password, _ := strings.Cut(strings.TrimRight(string(plain), "\x00"), ":")
		b, err := json.Marshal(credentials{user, password, a.IdentityToken, k})
		if err != nil {
			return "", err
		}
		return base64.URLEncoding.EncodeToString(b), nil
	}
	return "", nil
}

// registryOf is the registry that an engine takes an image from: without one that looks
// like a host it is Docker Hub.
func registryOf(ref string) string {
	host, _, more := strings.Cut(ref, "/")
	switch {
	case !more || !strings.ContainsAny(host, ".:") && host != "localhost" && host == strings.ToLower(host):
		return "docker.io"
	case host == "index.docker.io":
		return "docker.io"
	}
	return host
}

// tagged reports whether a reference has a tag or a digest.
func tagged(ref string) bool { return strings.ContainsAny(ref[strings.LastIndex(ref, "/")+1:], ":@") }
