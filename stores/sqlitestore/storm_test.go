//go:build nightly

package sqlitestore

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/failpoint"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

func init() {
	children["count"] = childCount
	children["book anyhow"] = childBookAnyhow
}

// countTTL is the lease under which the children count: longer than a machine pauses,
// and waited for by the successors of a child that was killed inside.
const countTTL = 10 * time.Second

// childCount increments a plain number in a file again and again, under a lock.
// Into a second file it writes when it enters and when it leaves. Its second argument is at which
// entry it kills itself, inside; 0: at none.
func childCount(args []string) error {
	path := args[0]
	s, err := Open(path, &Options{LockWait: testkit.Limit})
	if err != nil {
		return err
	}
	log, err := os.OpenFile(path+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	count, err := os.OpenFile(path+".count", os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	entries, _ := strconv.Atoi(args[1])
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	wakes := make(chan store.Token, 1)
	defer s.Notify(func(t store.Token, _ store.Answer) {
		select {
		case wakes <- t:
		default:
		}
	})()
	for {
		select {
		case <-ended:
			return s.Close()
		default:
		}
		c := lock("counter")
		c.Mode, c.TTL, c.PlaceTTL = store.Queue, countTTL, 500*time.Millisecond
		a, asked, err := untilGranted(s, c, wakes)
		if err != nil {
			return err
		}
		say := func(what string) {
			fmt.Fprintf(log, "%s %d %d %d %d %d\n", what, a.Fence, os.Getpid(), a.Attempt, asked, sinceBoot())
		}
		say("enter")
		if entries--; entries == 0 {
			self, err := os.FindProcess(os.Getpid())
			if err == nil {
				err = self.Kill()
			}
			if err != nil {
				return err
			}
			select {} // until the signal arrives
		}
		old, err := os.ReadFile(path + ".count")
		if err != nil {
			return err
		}
		n, _ := strconv.Atoi(string(old)) // at first there is nothing
		// One write of a fixed length: a kill leaves the old number or the new.
		if _, err := count.WriteAt(fmt.Appendf(nil, "%020d", n+1), 0); err != nil {
			return err
		}
		say("leave")
		errs := make([]error, 1)
		if err := s.Settle(context.Background(), []store.Settlement{release(c)}, errs); err != nil || errs[0] != nil {
			return fmt.Errorf("settle: %w, %w", err, errs[0])
		}
	}
}

// untilGranted waits for its turn, and says when it asked for what it got.
func untilGranted(s *Store, c store.Claim, wakes <-chan store.Token) (a store.Answer, asked int64, err error) {
	answers := make([]store.Answer, 1)
	for {
		answers[0] = store.Answer{}
		asked = sinceBoot()
		if err := s.Claim(context.Background(), []store.Claim{c}, answers); err != nil {
			return answers[0], asked, err
		}
		if a := answers[0]; a.State != store.Held || a.Err != nil {
			return a, asked, a.Err
		}
		select {
		case <-wakes:
		case <-time.After(min(answers[0].Left, c.PlaceTTL/3)):
		}
	}
}

// Processes count under a lock; some are killed inside, others at any moment. No process
// enters while another is inside, or before the lease of one that was killed
// inside has run out; nothing is counted twice or lost; and the file stays sound.
func TestProcessesAreKilled(t *testing.T) {
	t.Parallel()
	path := testFile(t)
	killed := map[int]bool{}
	var inside, outside []*failpoint.Child
	for i := range 3 {
		inside = append(inside, failpoint.Start(t, "", testkit.Child("count", path, strconv.Itoa(4+3*i))))
		outside = append(outside, failpoint.Start(t, "", testkit.Child("count", path, "0")))
	}
	for _, p := range inside {
		_ = p.Wait() // it was killed, and says so
		killed[p.Pid] = true
	}
	last := outside[2]
	for _, p := range outside[:2] {
		goOn(t, path, last)
		p.Kill()
		killed[p.Pid] = true
	}
	goOn(t, path, last)
	last.End()
	checkLog(t, path, killed)
	s := openTest(t, path, nil, hostClock)
	testkit.Eventually(t, "the key is free", func() bool { return claimOne(t, s, lock("counter")).State == store.Granted })
}

// goOn waits until the process has entered some more times.
func goOn(t *testing.T, path string, p *failpoint.Child) {
	t.Helper()
	entered := func() (n int) {
		for _, e := range readLog(t, path) {
			if e.pid == p.Pid {
				n++
			}
		}
		return n
	}
	before := entered()
	testkit.Eventually(t, "a process goes on", func() bool { return entered() >= before+10 })
}

// entry is a line of the log.
type entry struct {
	what                             string
	fence, pid, attempt, asked, time int
}

func readLog(t *testing.T, path string) []entry {
	t.Helper()
	data, err := os.ReadFile(path + ".log")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	var entries []entry
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		var e entry
		if _, err := fmt.Sscan(lines.Text(), &e.what, &e.fence, &e.pid, &e.attempt, &e.asked, &e.time); err != nil {
			t.Fatalf("the log has %q: %v", lines.Text(), err)
		}
		entries = append(entries, e)
	}
	return entries
}

func checkLog(t *testing.T, path string, killed map[int]bool) {
	t.Helper()
	var inside *entry
	last, entered, left := 0, 0, 0
	for _, e := range readLog(t, path) {
		switch e.what {
		case "enter":
			entered++
			if e.fence <= last {
				t.Errorf("fence %d came after %d", e.fence, last)
			}
			last = e.fence
			if inside == nil {
				break
			}
			if !killed[inside.pid] {
				t.Errorf("%+v entered while %+v was inside", e, *inside)
			}
			if e.attempt < 2 {
				t.Errorf("%+v does not see that %+v abandoned the key", e, *inside)
			}
			if waited := duration(int64(e.time - inside.asked)); waited < countTTL {
				t.Errorf("%+v entered %v after %+v had asked, whose lease lasted %v", e, waited, *inside, countTTL)
			}
		case "leave":
			left++
			if inside == nil || inside.fence != e.fence {
				t.Errorf("%+v left, inside was %+v", e, inside)
			}
		}
		inside = nil
		if e.what == "enter" {
			inside = &e
		}
	}
	data := testkit.ReadFile(t, path+".count")
	n, err := strconv.Atoi(string(data))
	if err != nil || n < left || n > entered {
		t.Errorf("%d entered, %d left, and the count is %q", entered, left, data)
	}
	t.Logf("%d entered, %d left, %d counted; %d processes killed", entered, left, n, len(killed))
}

// childBookAnyhow books once under a key, and is killed at any moment between the claim
// and a while after the answer, which it prints.
func childBookAnyhow(args []string) error {
	s, db, c, err := openApplication(args[0])
	if err != nil {
		return err
	}
	t := s.Transactions(db)
	start := time.Now()
	if _, err := bookOnce(c, t, "warm-up "+args[1], time.Minute); err != nil {
		return err
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	time.AfterFunc(rand.N(time.Since(start)*5/4), func() { _ = self.Kill() })
	entry, err := bookOnce(c, t, args[1], killedTTL)
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, entry)
	select {}
}

// Two hundred processes are killed at a random point between claim and answer. Every
// key ends with one row and one answer, the same each time. Where a kill strikes is up
// to the machine, inside of SQLite's commit too, so there is no seed to repeat it by.
func TestProcessesAreKilledInTransactions(t *testing.T) {
	t.Parallel()
	path := testFile(t)
	clock := standingClock(t)
	s, db, c := openLedger(t, path, clock.clock())
	const runs = 200
	printed := make([]string, runs)
	var running sync.WaitGroup
	free := make(chan struct{}, 3)
	for i := range runs {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			printed[i] = bookAndDie(t, path, fmt.Sprint("key ", i))
		})
	}
	running.Wait()
	rows := func(k string) (n int, entry string) {
		testkit.Must(t, db.QueryRowContext(t.Context(), "SELECT count(*), coalesce(max(entry), '') FROM ledger WHERE k = ?", k).Scan(&n, &entry))
		return n, entry
	}
	booked, answered := 0, 0
	for i := range runs {
		n, entry := rows(fmt.Sprint("key ", i))
		if n > 0 {
			booked++
		}
		if printed[i] != "" {
			answered++
			if printed[i] != entry || n != 1 {
				t.Errorf("key %d was answered %q, and the ledger has %d rows, %q", i, printed[i], n, entry)
			}
		}
	}
	moveOn(t, s, clock, 2*killedTTL) // the leases of the dead are over
	tr := s.Transactions(db)
	for i := range runs {
		running.Go(func() {
			k := fmt.Sprint("key ", i)
			for range 3 {
				answer, err := bookOnce(c, tr, k, time.Minute)
				if n, entry := rows(k); err != nil || n != 1 || entry != answer {
					t.Errorf("%s is answered %q, %v, and the ledger has %d rows, %q", k, answer, err, n, entry)
				}
			}
		})
	}
	running.Wait()
	t.Logf("of %d killed runs %d had committed, %d of those had answered", runs, booked, answered)
}

// bookAndDie returns what a child printed before it was killed.
func bookAndDie(t *testing.T, path, key string) string {
	cmd := testkit.Child("book anyhow", path, key)
	cmd.Stderr = os.Stderr
	printed, err := cmd.Output()
	if cmd.ProcessState == nil || cmd.ProcessState.Exited() {
		t.Errorf("the child was not killed: %v", err)
	}
	return strings.TrimSpace(string(printed))
}

// A crowd of processes makes the same new file at once.
func TestCrowdOpensANewFile(t *testing.T) {
	for range 3 {
		openANewFile(t, 8)
	}
}
