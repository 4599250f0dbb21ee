package envgen

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/sparkrun/sparkrun/launcher/plain"
)

// NCCLVersion is a release of NCCL, such as 2.28.9.
type NCCLVersion struct {
	Major int `json:"major"`
	Minor int `json:"minor"`
	Patch int `json:"patch"`
}

// ncclOwnGID is the first release that chooses each HCA's GID by itself and knows the variables that guide it.
var ncclOwnGID = NCCLVersion{Major: 2, Minor: 21}

var (
	ncclDotted = plain.Pattern(`^v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:[-+].*)?$`)
	ncclCode   = plain.Pattern(`^\d{4,6}$`)
)

// ParseNCCLVersion reads "2.28.9", "2.28.9+cuda13.0", "v2.28.9-1" or nccl.h's NCCL_VERSION_CODE: 22809, but 2708
// for 2.7.8, since the code had one digit less up to 2.8.
func ParseNCCLVersion(text string) (NCCLVersion, error) {
	if m := ncclDotted().FindStringSubmatch(text); m != nil {
		var v NCCLVersion
		v.Major, _ = strconv.Atoi(m[1]) // at most three digits: no overflow
		v.Minor, _ = strconv.Atoi(m[2])
		v.Patch, _ = strconv.Atoi(m[3]) // 0 where it is absent
		return v, nil
	}
	if ncclCode().MatchString(text) {
		code, _ := strconv.Atoi(text)
		if code < 10000 {
			return NCCLVersion{Major: code / 1000, Minor: code / 100 % 10, Patch: code % 100}, nil
		}
		return NCCLVersion{Major: code / 10000, Minor: code / 100 % 100, Patch: code % 100}, nil
	}
	return NCCLVersion{}, fmt.Errorf("parse NCCL version %q: want 2.28.9 or a version code such as 22809", text)
}

// Before reports whether v is older than o.
func (v NCCLVersion) Before(o NCCLVersion) bool {
	return cmp.Or(cmp.Compare(v.Major, o.Major), cmp.Compare(v.Minor, o.Minor), cmp.Compare(v.Patch, o.Patch)) < 0
}

// String gives the dotted form.
func (v NCCLVersion) String() string { return fmt.Sprintf("%d.%d.%d", v.Major, v.Minor, v.Patch) }
