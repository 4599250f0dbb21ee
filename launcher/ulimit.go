package launcher

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Ulimit bounds one resource of each process of a rank (setrlimit(2)).
type Ulimit struct {
	Name string `json:"name"` // one of UlimitNames
	Soft int64  `json:"soft"` // Unlimited, or 0 and up; bytes if it is a size
	Hard int64  `json:"hard"`
}

// Unlimited is a Ulimit without a bound.
const Unlimited = -1

// UlimitNames are those of docker run --ulimit.
var UlimitNames = []string{
	"core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc",
	"rss", "rtprio", "rttime", "sigpending", "stack",
}

// ParseUlimit reads NAME=SOFT[:HARD], as docker run --ulimit; "unlimited" or -1 is no
// limit.
func ParseUlimit(text string) (Ulimit, error) {
	name, limits, _ := strings.Cut(text, "=")
	soft, hard, both := strings.Cut(limits, ":")
	if !both {
		hard = soft
	}
	u := Ulimit{Name: name}
	var err error
	if u.Soft, err = parseLimit(soft); err == nil {
		u.Hard, err = parseLimit(hard)
	}
	if err != nil {
		return u, fmt.Errorf("%w: want NAME=SOFT or NAME=SOFT:HARD, such as memlock=unlimited or nofile=4096:65536",
			ErrInvalid)
	}
	return u, u.validate()
}

func parseLimit(text string) (int64, error) {
	if text == "unlimited" {
		return Unlimited, nil
	}
	return strconv.ParseInt(text, 10, 64)
}

func (u Ulimit) String() string {
	return fmt.Sprintf("%s=%s:%s", u.Name, limitText(u.Soft), limitText(u.Hard))
}

func limitText(n int64) string {
	if n == Unlimited {
		return "unlimited"
	}
	return strconv.FormatInt(n, 10)
}

// mayAsk refuses what would let a user's ranks keep the agent, and all others, from the
// processors. User is empty if ranks run as the user who starts them, and have no more
// rights than that user.
func (u Ulimit) mayAsk(user string) error {
	if (u.Name == "rtprio" || u.Name == "nice") && u.Hard != 0 && user != "" && user != "root" {
		return fmt.Errorf("%s: %w: only root's jobs may raise their priority, for it is above the agent's", u, ErrInvalid)
	}
	return nil
}

func (u Ulimit) validate() error {
	switch {
	case !slices.Contains(UlimitNames, u.Name):
		return fmt.Errorf("%q: %w: known are %s", u.Name, ErrInvalid, strings.Join(UlimitNames, ", "))
	case u.Soft < Unlimited || u.Hard < Unlimited:
		return fmt.Errorf("%s: %w: want 0 or more, or unlimited", u, ErrInvalid)
	case u.Name == "nice" && max(u.Soft, u.Hard) > 40, u.Name == "rtprio" && max(u.Soft, u.Hard) > 99:
		return fmt.Errorf("%s: %w: want 0 to 99 of rtprio, 0 to 40 of nice, which is 20 minus the lowest nice value", u,
			ErrInvalid)
	case u.Hard != Unlimited && (u.Soft == Unlimited || u.Soft > u.Hard):
		return fmt.Errorf("%s: %w: the soft limit (first) is above the hard limit (second)", u, ErrInvalid)
	}
	return nil
}
