package rendezvous

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/plain"
)

// GatewayCA signs the certificates by which members' gateways speak TLS. It is none of those that members trust.
type GatewayCA struct {
	// Names are what clients call the gateway beside the members' own names: of DNS, or addresses.
	Names []string `json:"names,omitempty"`
	// Cert is its certificate, DER: what it may sign for is in it.
	Cert []byte `json:"cert,omitempty"`
	// Key is sealed with keys of members' alone. It is on those machines only that have the record: no map has it.
	Key []byte `json:"key,omitempty"`
}

// ErrNoGatewayCA: there is none to be removed, or to sign.
var ErrNoGatewayCA = errors.New("the gateway has no CA of its own")

// MaxGatewayNames bounds the names that are given: each certificate has all of them.
const MaxGatewayNames = 20

func (c GatewayCA) validate() error {
	if len(c.Names) > MaxGatewayNames {
		return fmt.Errorf("the gateway's CA: %w: %d names, %d at most: `sparkrun gateway ca rm` begins anew",
			launcher.ErrInvalid, len(c.Names), MaxGatewayNames)
	}
	for _, name := range c.Names {
		if at, err := netip.ParseAddr(name); err == nil && at.Zone() == "" || IsHostName(name) {
			continue
		}
		return fmt.Errorf("the gateway's CA: name %.64q: %w: want a host name such as models.example.com, or an address",
			name, launcher.ErrInvalid)
	}
	return nil
}

// Public is it without its key; nil stays nil.
func (c *GatewayCA) Public() *GatewayCA {
	if c == nil {
		return nil
	}
	return &GatewayCA{Names: c.Names, Cert: c.Cert}
}

// Equal tells whether both are the same certificate, or none.
func (c *GatewayCA) Equal(other *GatewayCA) bool {
	return (c == nil) == (other == nil) && (c == nil || bytes.Equal(c.Cert, other.Cert))
}

var label = plain.Pattern(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$`)

// IsHostName tells whether DNS could have a name. One that ends in a number is taken for an address by clients.
func IsHostName(name string) bool {
	labels := strings.Split(name, ".")
	last := labels[len(labels)-1]
	return len(name) <= 253 && strings.Trim(last, "0123456789") != "" &&
		!slices.ContainsFunc(labels, func(l string) bool { return !label().MatchString(l) })
}
