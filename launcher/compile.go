package launcher

import "slices"

// Compiles reports whether ranks keep compiled code on their nodes: a variable refers to CompileCache.
func (s Spec) Compiles() bool {
	refers := func(p Part) bool { return p.Ref == CompileCache }
	return slices.ContainsFunc(s.Stages, func(st Stage) bool {
		return slices.ContainsFunc(st.Env, func(v Var) bool { return slices.ContainsFunc(v.Value, refers) })
	})
}
