package wire

import "connectrpc.com/connect"

// message is what goes over the wire, whatever its type: connect's code is compiled
// anew for each pair of types that it is used with, which for all procedures was
// 2 MB of each agent's memory.
type message struct{ body any } // a pointer

// empty readies a message that is about to be read.
func empty[T any](_ connect.Spec, m any) error {
	m.(*message).body = new(T)
	return nil
}

// body is what a message that was read holds: of the type that empty gave it.
func body[T any](m *message) T { return *m.body.(*T) }

// bare is what is encoded of what connect hands a codec.
func bare(m any) any {
	if m, ok := m.(*message); ok {
		return m.body
	}
	return m
}
