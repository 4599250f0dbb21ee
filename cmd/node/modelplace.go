package node

import (
	"cmp"
	"context"

	"github.com/sparkrun/sparkrun/launcher/filesync/modelcache"
	"github.com/sparkrun/sparkrun/launcher/login"
	"github.com/sparkrun/sparkrun/launcher/policy"
)

// modelDir is where the machine's models lie, without a look at it.
func modelDir(paths Paths) string {
	rules, _ := policy.Read(paths.Policy) // which the agent has told of
	return cmp.Or(rules.ModelCache(), paths.models())
}

// modelPlace is where the machine's models lie by its policy, and who may read them; nil: everybody.
func modelPlace(ctx context.Context, paths Paths, rules policy.Policy) (dir string, _ *modelcache.Readers, err error) {
	if dir = rules.ModelCache(); dir == "" {
		dir = paths.models()
	} else if err := modelcache.Place(dir); err != nil {
		return "", nil, rules.ModelRule(err)
	}
	users, groups, narrow := rules.ModelReaders()
	if !narrow {
		return dir, nil, nil
	}
	r := &modelcache.Readers{}
	for _, name := range users {
		u, err := login.Find(ctx, name)
		if err != nil {
			return "", nil, rules.ModelRule(err)
		}
		r.UIDs = append(r.UIDs, u.UID)
	}
	for _, name := range groups {
		id, err := login.FindGroup(ctx, name)
		if err != nil {
			return "", nil, rules.ModelRule(err)
		}
		r.GIDs = append(r.GIDs, id)
	}
	return dir, r, nil
}
