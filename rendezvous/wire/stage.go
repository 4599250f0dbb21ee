package wire

import (
	"context"
	"net/http"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/stage"
)

// StageRequest hands over what a job will bring along, before it is launched.
// Asked again, the answer is what is still missing.
type StageRequest struct {
	Job      launcher.JobID `json:"job"`
	User     string         `json:"user,omitempty"` // as whom the ranks will run; empty: the caller
	Manifest stage.Manifest `json:"manifest"`
	// Drop takes back what came of an earlier request: the job will not be launched.
	Drop bool `json:"drop,omitempty"`
}

// StageResponse names the node that took it, for the job's spec, and the
// contents that it has yet to be sent.
type StageResponse struct {
	Node    launcher.NodeID `json:"node"`
	Missing []string        `json:"missing,omitempty"`
}

// StageChunk is a piece of a content; pieces come in order.
type StageChunk struct {
	Job    launcher.JobID `json:"job"`
	User   string         `json:"user,omitempty"`
	Sum    string         `json:"sum"`
	Offset int64          `json:"offset,omitempty"`
	Data   []byte         `json:"data,omitempty"`
}

// NodeStageRequest asks the node that took a job's files: for the manifest, or
// for the content of a Sum. They are given for a job of that user only.
type NodeStageRequest struct {
	Job  launcher.JobID `json:"job"`
	User string         `json:"user"`
	Sum  string         `json:"sum,omitempty"`
}

func (h Cluster) mountStage(mux *http.ServeMux) {
	unary(mux, clusterPath+"Stage", allowUser, h.Stage)
	unary(mux, clusterPath+"StageContent", allowUser, h.StageContent)
}

func (h Node) mountStage(mux *http.ServeMux) {
	unary(mux, nodePath+"NodeStaged", allowMember, h.NodeStaged)
	serverStream(mux, nodePath+"NodeStageRead", allowMember, h.NodeStageRead)
}

// Stage hands a manifest over.
func (c *Client) Stage(ctx context.Context, r StageRequest) (StageResponse, error) {
	return call[StageRequest, StageResponse](ctx, c, clusterPath+"Stage", r)
}

// StageContent sends a piece of a content that was missing.
func (c *Client) StageContent(ctx context.Context, r StageChunk) error {
	_, err := call[StageChunk, Empty](ctx, c, clusterPath+"StageContent", r)
	return err
}

// NodeStaged gives the manifest of what a job brings along.
func (c *Client) NodeStaged(ctx context.Context, r NodeStageRequest) (stage.Manifest, error) {
	return call[NodeStageRequest, stage.Manifest](ctx, c, nodePath+"NodeStaged", r)
}

// NodeStageRead gives a content, piece by piece.
func (c *Client) NodeStageRead(ctx context.Context, r NodeStageRequest, fn func(StageChunk) error) error {
	return receive(ctx, c, nodePath+"NodeStageRead", r, fn)
}
