package launcher

// ModelCopy is what a node has of a model, where a server there would look for it, seen
// with the rights of the ranks' user.
type ModelCopy struct {
	// Dir is the folder that has it, or into which the server would fetch it: a path of the
	// node.
	Dir string `json:"dir"`
	// Found says that Dir exists; for a model name, that the cache has its main revision.
	Found bool `json:"found,omitempty"`
	// Config is its config.json without the quantization; empty: there is none, or none
	// that can be read.
	Config []byte `json:"config,omitempty"`
	// Bytes is the size of the weight files that exist; Whole that of all, and Lacks the
	// number of missing files, by model.safetensors.index.json. 0: not known.
	Bytes int64 `json:"bytes,omitempty"`
	Whole int64 `json:"whole,omitempty"`
	Lacks int   `json:"lacks,omitempty"`
	// Free is the free space of Dir's file system, in bytes; nil: not known.
	Free *int64 `json:"free,omitempty"`
}
