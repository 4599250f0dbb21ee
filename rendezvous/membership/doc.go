// Package membership is a node's part in who belongs to the cluster: members, and clients, which are users' machines.
//
// It decides who is let in by a token, whose certificate is signed, who is listed now, who is taken out and what is cut
// off then, which gossip keys are in use, and how this node itself leaves. The leader's part ([Leader]) records that
// and tells all others; what they have acknowledged is in force there.
//
// It must not take a certificate's word for a membership that has ended, must not acknowledge a key that gossip here
// cannot read yet, must not let go of a key that a job's secret still needs, and must not judge who is dead: a member
// that is silent stays one until a person takes it out.
package membership
