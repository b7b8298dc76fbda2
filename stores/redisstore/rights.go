package redisstore

import (
	"context"
	"fmt"

	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// checkRights returns an ErrUnauthorized if the user lacks a right that claims, hand-overs,
// listings and the other verbs need. A server that takes no writes for now is not an error.
func (s *Store) checkRights(ctx context.Context) error {
	k := store.Key{Name: "dibs probe rights"}
	group := s.names.group(k)
	// As text: so that the right to that is needed, too.
	answer, err := s.client.Do(ctx, s.client.B().Arbitrary("EVAL", probeScript.text, "3").
		Keys(s.names.fence(group), s.names.listed(group), s.names.state(k)).
		Args(s.names.sharded(), s.names.channel(group, "probe")).Build()).AsStrSlice()
	if err != nil {
		return explain("EVAL", err)
	}
	if len(answer) == 2 {
		command, said := answer[0], answer[1]
		cure := grant(said)
		if cure == "" {
			cure = "ACL SETUSER … +" + command + "; "
		}
		return &storekit.Fault{Is: ErrUnauthorized, Text: fmt.Sprintf("%s: %s", command, said), Cure: cure + rightsCure}
	}
	if s.options.Replicas > 0 {
		// The client of a Cluster sends what has no key to any node, and replicas refuse WAIT. What
		// has a key it sends to a master, so the first number is one.
		_, err = s.client.Do(ctx, s.client.B().Arbitrary("WAIT").Keys("0").Args("1").Build()).AsInt64()
	}
	return explained("WAIT", err)
}
