// Package wire is the calls between the CLI, the agents and the leader: the table of procedures, their messages, the
// error codes, and the one rule of forwarding: a request is passed on at most once.
//
// A procedure is a row of table.go. Who calls it says wire.Stop.Call(ctx, client, request); who answers it makes
// a Call by wire.Stop.Serve(fn), and a part of a node gives all of its own as
//
//	func (p *Part) Calls() []wire.Call
//
// to the Server. What every node answers for itself, and one call asks of all, is a row of
// everywhere.go and one function of a part. A row that goes to the leader is answered by what the leadership has given to Server.Lead; elsewhere
// the server passes it on, and Around gives the caller's own node its part in that: a check first, or the answer where
// there is no leader. In one process Server.As calls without a network.
//
// Messages are the plain Go structs of this package and of the words it
// carries (launcher, rendezvous, envgen), encoded as CBOR. Fields may be added;
// none may change its meaning or be used again. The calls ride on HTTP/2: over the local unix socket for the CLI,
// over mutual TLS among nodes. A call is a POST of one message; the reply is one message, or a stream of frames
// (format.go), or a status with an error's code and text.
//
// It must not decide anything: handlers are functions given by the node.
package wire
