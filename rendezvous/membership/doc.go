// Package membership is a node's part in who belongs to the cluster: members, and clients, which are users' machines.
//
// It decides who is admitted by a token, whose certificate is signed, who is on the member list, who is removed and
// which connections that closes, which gossip keys are in use, and how this node itself leaves. The leader's part
// ([Leader]) records this and tells all members; on each it is in force once that member has acknowledged it.
//
// It must not accept a certificate as proof of a membership that has ended, must not acknowledge a key that gossip
// here cannot read yet, must not drop a key that a job's secret still needs, and must not decide who is dead: a
// silent member stays a member until a person removes it.
package membership
