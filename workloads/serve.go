package workloads

// Serve are the options of a workload that serves a model.
type Serve struct {
	// Model is a name on Hugging Face, or a folder of the nodes.
	Model string `json:"model,omitempty"`
	// Snapshot is the folder that all nodes have of it, which the engine is given in place of the name, and Cache the one
	// of Hugging Face's models in which that lies; empty: the engine finds Model by itself.
	Snapshot string `json:"snapshot,omitempty"`
	Cache    string `json:"cache,omitempty"`
	// Online: the engine may have to fetch more, and keeps its own cache for that.
	Online bool `json:"online,omitempty"`
	// Program is the server on the nodes: a path, or a name looked up in the ranks' PATH.
	// Empty means the caller's $VIRTUAL_ENV/bin/..., and the bare name where no virtual
	// environment is active, or the ranks run in containers.
	Program string `json:"program,omitempty"`
	// Worker is the program of the other nodes, of an engine that has one for them; empty: the engine's.
	Worker string `json:"worker,omitempty"`
	// Command is the server's whole command as a recipe has it, in words and without what
	// spreads it over nodes; empty: it is made of Model. Flags in it that say how the model is
	// spread, or where it listens, are read, and written again as they were decided.
	Command []string `json:"command,omitempty"`
	// Args follow the command untouched: what stood after --. Those flags of them are read.
	Args []string `json:"args,omitempty"`
	// Backend is how an engine spreads that has two ways: "ray" or "native"; whoever asks the
	// image for "auto" does so before. Empty: what the command says, else native.
	Backend string `json:"backend,omitempty"`
	// TP, PP and DP are the sizes of tensor, pipeline and data parallelism; 0: from the
	// number of nodes and the model.
	TP int `json:"tp,omitempty"`
	PP int `json:"pp,omitempty"`
	DP int `json:"dp,omitempty"`
	// Host is what the server listens on; empty: the management address of rank 0's node.
	Host string `json:"host,omitempty"`
	// Port of the API; 0: the workload's default.
	Port int `json:"port,omitempty"`
	// Env are variables of a recipe, NAME=VALUE: they win over the workload's own, and the
	// user's over them.
	Env []string `json:"env,omitempty"`
	// Config is what the model's config.json says; nil: not known.
	Config *Model `json:"-"`
	// Total is the memory of the largest machine that it would get, in bytes; 0: not known.
	Total int64 `json:"-"`
}

// How a server spreads over machines: Serve.Backend.
const (
	BackendNative = "native"
	BackendRay    = "ray"
)

// ServePort names the port of a service's API.
const ServePort = "serve.api"
