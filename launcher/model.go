package launcher

// ModelCopy is what a node has of a model, seen with the rights of the ranks' user, where a server
// there would look for it.
type ModelCopy struct {
	// Dir is the folder that has it, or where the server would fetch it to: a path of the node.
	Dir string `json:"dir"`
	// Found says that Dir is there, and of a name that the cache has its main revision.
	Found bool `json:"found,omitempty"`
	// Config is its config.json but for what says how it is quantized; empty: there is none, or none that can be read.
	Config []byte `json:"config,omitempty"`
	// Bytes are those of its weights that are there; Whole those of all, and Lacks the number of files
	// not there, by model.safetensors.index.json. 0: nobody says.
	Bytes int64 `json:"bytes,omitempty"`
	Whole int64 `json:"whole,omitempty"`
	Lacks int   `json:"lacks,omitempty"`
	// Free is how much more the file system of Dir takes, in bytes; nil: not known.
	Free *int64 `json:"free,omitempty"`
}
