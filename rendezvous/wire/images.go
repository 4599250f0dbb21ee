package wire

import (
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
)

// ImagePullRequest asks for an image on machines of the cluster. The replies are those of a model's pull: of the plan
// the repository is the image's reference, and the commit its digest.
type ImagePullRequest struct {
	Ref string `json:"ref"` // as docker writes it
	// ID is made by the client: asking again with it follows what was begun.
	ID launcher.JobID `json:"id"`
	// On, Nodes and All are as a model's.
	On    []string `json:"on,omitempty"`
	Nodes int      `json:"nodes,omitempty"`
	All   bool     `json:"all,omitempty"`
	// Missing: machines that have an image of this name keep it, whichever it is.
	Missing bool `json:"missing,omitempty"`
	// Login is for its registry: an object with username and password, or refresh_token, sealed by the call seal under
	// this ID.
	Login *launcher.SealedSecret `json:"login,omitempty"`
}

func (r ImagePullRequest) about() (string, bool) { return r.Ref, true }

// ImageOrder is what an order has that brings an image to its node's engine.
type ImageOrder struct {
	Ref  string `json:"ref"`  // what it is to be called
	Root string `json:"root"` // digest of its index or manifest
	// Types are the media types of the contents that are manifests, by their digests.
	Types map[string]string `json:"types"`
}

// ImagesRequest asks for one image, or for all.
type ImagesRequest struct {
	Ref string `json:"ref,omitempty"`
}

// ImagesResponse is what every machine's engine has.
type ImagesResponse struct {
	Nodes []NodeImages `json:"nodes"`
}

// NodeImages are one machine's.
type NodeImages struct {
	ID     launcher.NodeID `json:"id"`
	Host   string          `json:"host"`
	Arch   string          `json:"arch,omitempty"` // of the machine
	Images []HeldImage     `json:"images,omitempty"`
	// Error says why there is no answer.
	Error string `json:"error,omitempty"`
}

// HeldImage is an image that an engine has.
type HeldImage struct {
	ID      string    `json:"id"`
	Refs    []string  `json:"refs,omitempty"`
	Digests []string  `json:"digests,omitempty"`
	Created time.Time `json:"created,omitzero"`
	Size    int64     `json:"size"`
	// DiffIDs are the sums of its layers, where it was asked for by its name.
	DiffIDs []string `json:"diff_ids,omitempty"`
}

func (n *NodeImages) from(id launcher.NodeID, host, problem string) {
	n.ID, n.Host = id, host
	if problem != "" {
		n.Error = problem
	}
}

// NodeImageSave has a node take an image out of its engine, for others.
type NodeImageSave struct {
	Ref    string   `json:"ref"`
	User   string   `json:"user"`
	Arches []string `json:"arches"`
}

// ImageSaved is how much it has read; the last reply has what it became.
type ImageSaved struct {
	Have     int64                `json:"have"`
	Manifest *modelcache.Manifest `json:"manifest,omitempty"`
	Image    *ImageOrder          `json:"image,omitempty"`
}
