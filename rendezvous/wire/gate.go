package wire

import (
	"context"
	"net/http"

	"github.com/sparkrun/sparkrun/launcher"
)

// GateRequest tells what a test of the links between nodes has reached, to be kept by each
// of them for launches that require it.
type GateRequest struct {
	Nodes []launcher.NodeID `json:"nodes"`
	// Part is of what was expected, 0 or more; 0: it failed.
	Part float64 `json:"part"`
}

// GateResponse names the hosts of them that were not told.
type GateResponse struct {
	Missed []string `json:"missed,omitempty"`
}

func (h Cluster) mountGate(mux *http.ServeMux) {
	unary(mux, clusterPath+"Gate", allowUser, h.Gate)
}

func (h Node) mountGate(mux *http.ServeMux) {
	unary(mux, nodePath+"NodeGate", allowMember, h.NodeGate)
}

// Gate tells all nodes of a test.
func (c *Client) Gate(ctx context.Context, r GateRequest) (GateResponse, error) {
	return call[GateRequest, GateResponse](ctx, c, clusterPath+"Gate", r)
}

// NodeGate tells one member.
func (c *Client) NodeGate(ctx context.Context, r GateRequest) error {
	_, err := call[GateRequest, Empty](ctx, c, nodePath+"NodeGate", r)
	return err
}
