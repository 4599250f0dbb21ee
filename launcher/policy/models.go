package policy

import (
	"fmt"
	"path"

	"go.yaml.in/yaml/v3"
)

// ModelCache is where the machine's models lie; empty: no rule.
func (p Policy) ModelCache() string {
	if p.modelCache == nil {
		return ""
	}
	return p.modelCache.of[0]
}

// ModelReaders are the users and groups that may read the machine's models, by name; ok false: no rule, everybody may.
func (p Policy) ModelReaders() (users, groups []string, ok bool) {
	if p.modelReaders == nil {
		return nil, nil, false
	}
	return p.modelReaders.users, p.modelReaders.groups, true
}

// ModelRule says which rule an error about the machine's models is of.
func (p Policy) ModelRule(err error) error {
	switch {
	case p.modelReaders != nil && p.modelCache != nil:
		return fmt.Errorf("rules model_cache and model_readers, lines %d and %d of %s: %w", p.modelCache.line,
			p.modelReaders.line, p.path, err)
	case p.modelCache != nil:
		return fmt.Errorf("rule model_cache, line %d of %s: %w", p.modelCache.line, p.path, err)
	case p.modelReaders != nil:
		return fmt.Errorf("rule model_readers, line %d of %s: %w", p.modelReaders.line, p.path, err)
	}
	return err
}

// folder reads one absolute path.
func folder(n *yaml.Node) (string, error) {
	if n.Kind != yaml.ScalarNode || !path.IsAbs(n.Value) || path.Clean(n.Value) == "/" {
		return "", at(n, "%q: want the full path of a folder, such as /data/models", n.Value)
	}
	return path.Clean(n.Value), nil
}
