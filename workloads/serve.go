package workloads

// Serve are the options of the workloads that serve a model: vllm, sglang, trtllm.
type Serve struct {
	// Model is a name on Hugging Face, or a folder of the nodes.
	Model string
	// Command is the server's whole command as a recipe has it, in words and without what
	// spreads it over nodes; empty: it is made of Model.
	Command []string
	// Args follow the command untouched: what stood after --.
	Args []string
	// Backend is how vLLM spreads: "ray" or "native"; whoever asks the image for "auto"
	// does so before.
	Backend string
	// TP, PP and DP are the sizes of tensor, pipeline and data parallelism; 0: from the
	// number of nodes and the model.
	TP, PP, DP int
	// Host is what the server listens on; empty: the management address of rank 0's node.
	Host string
	// Port of the API; 0: the workload's default.
	Port int
	// Env are variables of a recipe, NAME=VALUE: they win over the workload's own, and the
	// user's over them.
	Env []string
	// Config is what the model's config.json says; nil: not known.
	Config *Model
}

// Model is what the fit and the parallelism of a model hang on, as its config.json and
// safetensors index have it. 0: not said.
type Model struct {
	Heads, KVHeads, HeadDim, Layers int
	Experts                         int
	MaxLen                          int   // tokens
	Bytes                           int64 // of its weights
}
