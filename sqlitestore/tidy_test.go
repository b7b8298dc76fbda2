package sqlitestore

import (
	"testing"
	"time"

	"github.com/dibs-go/dibs"
)

// TestNotesFollowEachOther: two settlements that were noted down before anybody looked
// have the effect that they have one after the other. The first one frees a permit for
// the waiter. The second one's place stands in front of the waiter, but too late.
func TestNotesFollowEachOther(t *testing.T) {
	c := newTestClock("a", time.Hour)
	s := openTest(t, testFile(t), &Options{PruneEvery: -1}, c.clock())
	two := func(edits ...func(*dibs.Claim)) dibs.Claim {
		claim := lock("k")
		claim.Permits, claim.Place = 2, time.Hour
		for _, edit := range edits {
			edit(&claim)
		}
		return claim
	}
	job := two(func(c *dibs.Claim) { c.Mode = dibs.Reserve })
	worker := two(func(c *dibs.Claim) { c.Redeems = job.Token })
	holder := two()
	waiters := []dibs.Claim{two(func(c *dibs.Claim) { c.Mode = dibs.Queue }), two(func(c *dibs.Claim) { c.Mode = dibs.Queue })}
	wantState(t, "the job's place", claimOne(t, s, job), dibs.Held)
	mustGrant(t, s, worker)
	mustGrant(t, s, holder)
	for _, w := range waiters {
		wantState(t, "a waiter", claimOne(t, s, w), dibs.Held)
	}
	c.pass(time.Second)
	note(t, s, dibs.Settlement{Key: holder.Key, Token: holder.Token, Outcome: dibs.Release})
	c.pass(time.Second)
	note(t, s, dibs.Settlement{Key: worker.Key, Token: worker.Token, Outcome: dibs.Undo})
	wantState(t, "the second waiter", claimOne(t, s, waiters[1]), dibs.Held)
	mustGrant(t, s, waiters[0])
	worker.Token = dibs.NewToken()
	mustGrant(t, s, worker)
	wantState(t, "the second waiter", claimOne(t, s, waiters[1]), dibs.Held)
}
