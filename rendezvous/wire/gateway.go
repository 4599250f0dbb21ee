package wire

import (
	"time"

	"github.com/sparkrun/sparkrun/rendezvous"
)

// GatewayResponse is the gateway as a user sees it: hashes of keys stay out of it.
type GatewayResponse struct {
	Open bool `json:"open"`
	// Port is where each member listens.
	Port     uint16               `json:"port"`
	Keys     []GatewayKey         `json:"keys,omitempty"` // by name
	Aliases  map[string]string    `json:"aliases,omitempty"`
	Backends []rendezvous.Backend `json:"backends"`
}

// GatewayKey is what is known of a key.
type GatewayKey struct {
	Name    string     `json:"name"`
	Models  []string   `json:"models,omitempty"` // none: all
	Rate    float64    `json:"rate,omitempty"`   // requests a second at each member; 0: not bounded
	Expires *time.Time `json:"expires,omitempty"`
	Wake    bool       `json:"wake,omitempty"`
	Created time.Time  `json:"created"`
	By      string     `json:"by"`
}
