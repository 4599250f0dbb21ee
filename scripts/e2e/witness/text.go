package witness

import (
	"fmt"
	"hash/fnv"
	"strings"
)

// Text is the line that a rank prints as number n, its newline included: of a
// length and content that no other line of any rank has.
func Text(k Key, rank int32, n uint64) string {
	h := Hash(fmt.Sprintf("%s/%d/%d", k, rank, n))
	return fmt.Sprintf("%s rank %d line %d %s\n", k, rank, n, strings.Repeat(fmt.Sprintf("%016x", h), int(1+h%64)))
}

// Hash of a line.
func Hash(text string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(text))
	return h.Sum64()
}
