package wire

import (
	"github.com/sparkrun/sparkrun/rendezvous"
)

// LoginRequest comes from a machine that is to be a client. Its secret proves
// that somebody of the cluster invited it; the CSR proves that it holds its key.
type LoginRequest struct {
	Secret []byte `json:"secret"`
	CSR    []byte `json:"csr"`    // DER
	Client string `json:"client"` // the id that it has given itself, a UUID
	Host   string `json:"host"`   // its name, for people
}

// String keeps the secret out of logs and errors.
func (r LoginRequest) String() string { return "login of " + r.Host + " (" + r.Client + ")" }

// GoString does the same for %#v.
func (r LoginRequest) GoString() string { return r.String() }

// LoginResponse makes it a client.
type LoginResponse struct {
	Cluster string   `json:"cluster"`
	User    string   `json:"user"` // whose client it is
	Cert    []byte   `json:"cert"` // DER
	CACert  []byte   `json:"ca_cert"`
	Members []Member `json:"members"`
	OnlyOn  string   `json:"recorded_only_on,omitempty"` // see Acknowledged
}

// RefreshRequest comes from a client from time to time.
type RefreshRequest struct {
	CSR []byte `json:"csr,omitempty"` // DER, by the client's own key; empty: no certificate is wanted
}

// RefreshResponse is what a client needs to reach the cluster.
type RefreshResponse struct {
	User    string   `json:"user"`
	Home    string   `json:"home,omitempty"` // the user's, on the member that answers
	Members []Member `json:"members"`
	Cert    []byte   `json:"cert,omitempty"` // DER; empty: this member cannot sign, ask another
}

// ClientsResponse lists the clients.
type ClientsResponse struct {
	Clients []rendezvous.Client `json:"clients"`
}

// RemoveClientsRequest removes clients: one, or all of a user.
type RemoveClientsRequest struct {
	Client string `json:"client,omitempty"` // see rendezvous.FindClient
	User   string `json:"user,omitempty"`
}

// RemoveClientsResponse names those that were removed.
type RemoveClientsResponse struct {
	Removed []rendezvous.Client `json:"removed"`
	OnlyOn  string              `json:"recorded_only_on,omitempty"` // see Acknowledged
}
