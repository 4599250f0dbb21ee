package wire

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/sparkrun/sparkrun/launcher"
	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
)

// ModelRepo names a model or a dataset, as the Hub does.
type ModelRepo struct {
	Type string `json:"type,omitempty"` // model, dataset; empty: model
	Name string `json:"name"`           // ORG/NAME
}

// Cached is its name in the cache. It refuses what cannot be one.
func (r ModelRepo) Cached() (modelcache.Repo, error) {
	if r.Type == "" {
		r.Type = modelcache.Model
	}
	repo := modelcache.Repo(r)
	err := repo.Check()
	if repo.Type == modelcache.Image {
		err = errors.New("want a model or a dataset")
	}
	if err != nil {
		return repo, fmt.Errorf("%w: %w", launcher.ErrInvalid, err)
	}
	return repo, nil
}

// ModelPullRequest asks for a model's files on machines of the cluster.
type ModelPullRequest struct {
	ModelRepo
	// ID is made by the client: asking again with it follows what was begun.
	ID       launcher.JobID `json:"id"`
	Revision string         `json:"revision,omitempty"` // branch, tag or commit; empty: main
	// On are hosts; Nodes is a number of machines, those that have most of it; none of both, and not All: the machine
	// that is asked.
	On    []string `json:"on,omitempty"`
	Nodes int      `json:"nodes,omitempty"`
	All   bool     `json:"all,omitempty"`
	// Include and Exclude are patterns; without Include it is what engines load.
	Include []string `json:"include,omitempty"`
	Exclude []string `json:"exclude,omitempty"`
	// User is for whom it is fetched, where root asks for another; empty: the caller.
	User string `json:"user,omitempty"`
	// OwnCache has it put into that user's own cache as well: OwnDir, or, if that is empty, the one in the user's home.
	OwnCache bool   `json:"own_cache,omitempty"`
	OwnDir   string `json:"own_dir,omitempty"`
	// Again: it was begun before under this ID, and is only followed.
	Again bool `json:"again,omitempty"`
	// Brief: the caller has another way, so that the Hub is not waited for.
	Brief bool `json:"brief,omitempty"`
	// Token is for the Hub, sealed by the call seal under this ID.
	Token *launcher.SealedSecret `json:"token,omitempty"`
	// Limit bounds what each machine takes in, in bytes a second; 0: nothing does.
	Limit int64 `json:"limit,omitempty"`
}

func (r ModelPullRequest) about() (string, bool) { return r.Name, true }

// ModelProgress is one machine's, or, before those, what is fetched; before that, perhaps, what is waited for.
type ModelProgress struct {
	Plan *ModelPlan `json:"plan,omitempty"`
	// Asks is the Hub that is asked, and has not answered yet.
	Asks string `json:"asks,omitempty"`

	Host  string `json:"host,omitempty"`
	State string `json:"state,omitempty"` // see below
	Have  int64  `json:"have"`            // bytes
	Bytes int64  `json:"bytes"`           // of all that it is to have
	// From is where the newest bytes come from: a host, or outside.
	From string `json:"from,omitempty"`
	// Notes are what has happened since the last reply: a source that was left, and why.
	Notes []string `json:"notes,omitempty"`
	Error string   `json:"error,omitempty"` // of failed and away
	Dir   string   `json:"dir,omitempty"`   // of done: the snapshot's folder
}

// waits says that nothing has begun.
func (p ModelProgress) waits() bool { return p.Asks != "" }

// States of a machine's part in a pull.
const (
	ModelWaits   = "waits" // it has the order, and has not begun
	ModelFetches = "fetches"
	ModelUnpacks = "unpacks" // an image: all of it is there, and the engine takes it in
	ModelDone    = "done"
	ModelFailed  = "failed"
	ModelAway    = "away" // it does not answer; when it does, it goes on
)

// Ended says that it will not change by itself.
func (p ModelProgress) Ended() bool { return p.State == ModelDone || p.State == ModelFailed }

// ModelPlan is what a pull fetches.
type ModelPlan struct {
	Repo   modelcache.Repo `json:"repo"`
	Commit string          `json:"commit"`
	Files  int             `json:"files"`
	Bytes  int64           `json:"bytes"`
	Hosts  []string        `json:"hosts"` // in the order in which it goes through them
	// Left are files that are not fetched, by the reason.
	Left map[string]int `json:"left,omitempty"`
	// Restricted: it is gated or private. For is the user who can read it then beside root, and others whose tokens the
	// Hub has accepted before; empty: every user can.
	Restricted bool   `json:"restricted,omitempty"`
	For        string `json:"for,omitempty"`
	// Offline says why the Hub was not asked: the commit is what members have.
	Offline string `json:"offline,omitempty"`
}

// ModelOrder has a node fetch files. It is kept on its disk until they are there.
type ModelOrder struct {
	ID       launcher.JobID      `json:"id"`
	User     string              `json:"user"` // who has sealed the token
	For      string              `json:"for"`
	Manifest modelcache.Manifest `json:"manifest"`
	Chain    []launcher.NodeID   `json:"chain"`
	Outside  bool                `json:"outside,omitempty"` // the Hub has it
	// Restricted: of the users without it, only For gets the right to read it.
	Restricted bool                   `json:"restricted,omitempty"`
	Token      *launcher.SealedSecret `json:"token,omitempty"`
	Limit      int64                  `json:"limit,omitempty"`
	OwnCache   bool                   `json:"own_cache,omitempty"`
	OwnDir     string                 `json:"own_dir,omitempty"`
	// Image: it is one, and outside is its registry.
	Image *ImageOrder `json:"image,omitempty"`
}

// NodeModelAskRequest has a node ask the Hub what a revision has. Only for that it opens the token.
type NodeModelAskRequest struct {
	ID       launcher.JobID         `json:"id"`
	User     string                 `json:"user"`
	Repo     modelcache.Repo        `json:"repo"`
	Revision string                 `json:"revision,omitempty"`
	Token    *launcher.SealedSecret `json:"token,omitempty"`
	Brief    bool                   `json:"brief,omitempty"`
}

// NodeModelRequest gives a node an order; Try: it says whether it would take it.
type NodeModelRequest struct {
	Order ModelOrder `json:"order"`
	Try   bool       `json:"try,omitempty"`
}

// NodeModelWatch follows an order of a node.
type NodeModelWatch struct {
	ID     launcher.JobID  `json:"id"`
	Repo   modelcache.Repo `json:"repo"`
	Commit string          `json:"commit"`
}

// ModelsRequest asks for one repository, or for all.
type ModelsRequest struct {
	ModelRepo
	// User is whose rights to read count; empty: the caller's.
	User string `json:"user,omitempty"`
}

func (r *ModelsRequest) askedBy(user string) { r.User = cmp.Or(r.User, user) }

// ModelsResponse is what every machine has.
type ModelsResponse struct {
	Nodes []NodeModels `json:"nodes"`
}

// NodeModels are one machine's.
type NodeModels struct {
	ID   launcher.NodeID `json:"id"`
	Host string          `json:"host"`
	Dir  string          `json:"dir,omitempty"`
	Free int64           `json:"free"` // bytes that models may still take
	Held []HeldModel     `json:"held,omitempty"`
	// Error says why there is no answer, or what of the cache cannot be read.
	Error string `json:"error,omitempty"`
}

// HeldModel is what a machine has of a repository. Of the files that are missing, or foreign, the first are named.
type HeldModel struct {
	modelcache.Held
	// Pulling is the pull under way, if any, and Comes its commit; Why says why the last one failed.
	Pulling launcher.JobID `json:"pulling,omitempty"`
	Comes   string         `json:"comes,omitempty"`
	Why     string         `json:"why,omitempty"`
	// Denied: the user may not read it here.
	Denied bool `json:"denied,omitempty"`
}

func (n *NodeModels) from(id launcher.NodeID, host, problem string) {
	n.ID, n.Host = id, host
	if problem != "" {
		n.Error = problem
	}
}

// ModelRequest names what is verified or removed.
type ModelRequest struct {
	ModelRepo
	Revision string   `json:"revision,omitempty"` // a commit, or the beginning of one, or a branch or tag; empty: all
	On       []string `json:"on,omitempty"`       // hosts; empty: all that have it
}

// ModelRemoveRequest removes it.
type ModelRemoveRequest struct{ ModelRequest }

func (r ModelRemoveRequest) about() (string, bool) { return r.Name, true }

// ModelVerdict is what one machine says: the bytes read so far, at the end what is wrong.
type ModelVerdict struct {
	Host  string           `json:"host"`
	Read  int64            `json:"read"`
	Bytes int64            `json:"bytes"`
	Ended bool             `json:"ended,omitempty"`
	Bad   []modelcache.Bad `json:"bad,omitempty"`
	Error string           `json:"error,omitempty"`
}

// ModelRemoved says per machine what came of it; those that do not have it are left out.
type ModelRemoved struct {
	Nodes []NodeModelRemoved `json:"nodes"`
}

// NodeModelRemoved is one machine's.
type NodeModelRemoved struct {
	Host  string `json:"host"`
	Bytes int64  `json:"bytes"` // that are free now
	Error string `json:"error,omitempty"`
}

// ModelAddRequest takes a folder of the machine that is asked as a model.
type ModelAddRequest struct {
	ModelRepo
	Dir  string `json:"dir"`            // absolute
	User string `json:"user,omitempty"` // with whose rights the folder is read; empty: the caller
	Ref  string `json:"ref,omitempty"`  // the branch that stands for it; empty: main
}

func (r ModelAddRequest) about() (string, bool) { return r.Name, true }

// ModelAdded says what it became.
type ModelAdded struct {
	Host   string          `json:"host"`
	Repo   modelcache.Repo `json:"repo"`
	Commit string          `json:"commit"`
	Files  int             `json:"files"`
	Bytes  int64           `json:"bytes"`
	Dir    string          `json:"dir"`
	Took   time.Duration   `json:"took"`
}
