package launcher

// Stream is one of a rank's two outputs.
type Stream string

const (
	Stdout Stream = "out"
	Stderr Stream = "err"
)

// Cursor is a place in one rank's output.
type Cursor struct {
	Rank   int    `json:"rank"`
	Stream Stream `json:"stream"`
	Offset int64  `json:"offset"` // bytes from the start
}

// Chunk is a piece of output, or with no Data a remark.
type Chunk struct {
	Rank   int    `json:"rank"`
	Stream Stream `json:"stream,omitempty"`
	Offset int64  `json:"offset"` // of the first byte of Data
	Data   []byte `json:"data,omitempty"`
	Host   string `json:"host,omitempty"`
	Note   string `json:"note,omitempty"` // e.g. that a node does not answer
}

// Setting is one variable as a rank gets it, and where it comes from.
type Setting struct {
	Name   string `json:"name"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

// RankPlan is what one rank would be exec'd with.
type RankPlan struct {
	Rank int       `json:"rank"`
	Argv []string  `json:"argv"`
	Env  []Setting `json:"env"`
}
