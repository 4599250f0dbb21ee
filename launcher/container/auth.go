package container

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/registry"
)

// hubKey is the name of Docker Hub's entry in a client's configuration.
const hubKey = "https://index.docker.io/v1/"

// Auth gives the credentials of a user's ~/.docker/config.json for an image's registry, as
// Pull takes them; empty: there are none. Credential helpers are not run: such a pull is
// anonymous.
func Auth(config []byte, ref string) (string, error) {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil || strings.HasPrefix(ref, "sha256:") {
		return "", nil //nolint:nilerr // an ID belongs to no registry
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
	domain := reference.Domain(named)
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
		b, err := json.Marshal(registry.AuthConfig{Username: user, Password: password, IdentityToken: a.IdentityToken,
			ServerAddress: k})
		if err != nil {
			return "", err
		}
		return base64.URLEncoding.EncodeToString(b), nil
	}
	return "", nil
}
