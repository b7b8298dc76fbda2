//go:build nightly

package asynqjobs

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

var seedFlag = flag.Uint64("seed", 0, "the seed of the storm; 0: a new one")

// TestStorm: events of many conversations, enqueued while the workers of four processes run,
// some of which are killed; some tasks fail once. All events of a conversation are done in
// their order, one at a time, and again only if a process died with the task.
//
// Asynq gives the tasks of a dead process to another one a minute after its death at the
// earliest, and that cannot be set: the kills are early.
func TestStorm(t *testing.T) {
	t.Parallel()
	seed := cmp.Or(*seedFlag, rand.Uint64())
	t.Logf("to repeat it: go test -race -tags nightly -run TestStorm -args -seed %d", seed)
	const conversations, each, processes, kills = 200, 25, 4, 8
	p := plan{Redis: ownRedis(t), TTL: 5 * time.Second, Fails: 7}
	p.Back = 10 * time.Minute // longer than a dead worker's tasks take to come back: other tasks pass a late one
	f := newFixture(t, p.Redis, p.options())
	keys := make([]string, conversations)
	for i := range keys {
		keys[i] = fmt.Sprint("conversation ", i)
	}
	chance := rand.New(rand.NewPCG(seed, 1))
	children := make([]*failpoint.Child, processes)
	for i := range children {
		children[i] = startChild(t, "", p)
	}
	counts := make([]int, conversations)
	for n, i := range chance.Perm(conversations * each) {
		i %= conversations
		counts[i]++
		f.enqueue(t, job(keys[i], strconv.Itoa(counts[i])))
		if k := n / 100; n%100 == 99 && k < kills {
			children[k%processes].Kill()
			children[k%processes] = startChild(t, "", p)
		}
	}
	killed := time.Now()
	// Then Asynq has given up the dead processes' tasks.
	for f.info(t).Size > 0 && time.Since(killed) < 61*time.Second {
		<-time.After(100 * time.Millisecond)
	}
	// A server looks for those when it starts, and every minute.
	children[0].End()
	children[0] = startChild(t, "", p)
	for end := time.Now().Add(5 * testkit.Limit); f.info(t).Size > 0; <-time.After(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d tasks are left", f.info(t).Size)
		}
	}
	for _, c := range children {
		c.End()
	}
	var want []string
	for n := range each {
		want = append(want, strconv.Itoa(n+1))
	}
	again := 0
	for _, key := range keys {
		got := f.mutex.redis.LRange(t.Context(), "done "+key, 0, -1).Val()
		again += len(got) - each
		if once := slices.Compact(slices.Clone(got)); !slices.Equal(once, want) {
			t.Errorf("%s: done was %v", key, strings.Join(got, " "))
		}
	}
	t.Logf("%d of %d were done again; failed %d, archived %d", again, conversations*each, f.info(t).Failed, f.info(t).Archived)
	if again > kills*workers {
		t.Errorf("%d were done again, by %d kills", again, kills)
	}
}
