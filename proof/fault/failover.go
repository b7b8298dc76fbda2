package fault

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/dibs-go/dibs/internal/backoff"
)

func failoverFaults() []*Fault {
	return []*Fault{
		{
			Name: "failover", Kind: Data, Forgets: true, gate: serverGate, applies: needFailover, strike: failOver,
			About: "the server is taken away, and a replica that has not heard of the last writes takes its place", Evidence: "a replica that was promoted and that lacks, by the servers' own counts, what its master had; if replication is synchronous, one that was promoted",
		},
		{
			Name: "split", Kind: Data, Forgets: true, gate: serverGate, applies: needSplit, strike: split,
			About: "the server is cut off from its replica, which takes its place; some workers go on with the old server for a while", Evidence: "an old server that did something, by its own count, that the new one does not have",
		},
	}
}

func needFailover(t *Target) error {
	if t.Failover == nil {
		return errors.New("the server has no replica of the run's own to take its place")
	}
	if findsServers(t.URL) {
		return nil
	}
	return needWires(t)
}

// findsServers reports whether the clients of the store find the new server by themselves.
func findsServers(storeURL string) bool {
	_, host, _ := around(storeURL)
	return strings.HasPrefix(storeURL, "redis+") || strings.Contains(host, ",")
}

func needSplit(t *Target) error {
	if err := needFailover(t); err != nil {
		return err
	}
	if len(t.Wires) < 2 {
		return errors.New("it takes two workers with wires: one for each server")
	}
	return nil
}

func failOver(ctx context.Context, t *Target, r *rand.Rand) (hits int, err error) {
	// With synchronous replication nothing is acknowledged while the replica lags. So it does not
	// always lag then.
	if !t.Synchronous || r.IntN(2) == 0 {
		if err := t.Failover.Lag(); err != nil {
			return 0, err
		}
		_ = backoff.Sleep(ctx, t.spell(r))
	}
	addr, err := t.Failover.Promote(false)
	if err != nil {
		return 0, err
	}
	t.move(addr)
	behind, err := t.Failover.Rebuild()
	if err == nil && (behind > 0 || t.Synchronous) {
		hits = 1
	}
	return hits, err
}

// split leaves some workers, and not all, with the old server.
func split(ctx context.Context, t *Target, r *rand.Rand) (hits int, err error) {
	if err := t.Failover.Lag(); err != nil {
		return 0, err
	}
	_ = backoff.Sleep(ctx, t.spell(r)/2)
	addr, err := t.Failover.Promote(true)
	if err != nil {
		return 0, err
	}
	n := 1 + r.IntN(len(t.Wires)-1)
	for _, i := range r.Perm(len(t.Wires))[:n] {
		t.Wires[i].Lead(addr)
	}
	_ = backoff.Sleep(ctx, 2*t.long(r))
	t.move(addr)
	behind, err := t.Failover.Rebuild()
	if err == nil && behind > 0 {
		hits = 1
	}
	return hits, err
}

// move leads all workers to the address that the server has since a failover.
func (t *Target) move(addr string) {
	t.mu.Lock()
	t.moved = addr
	t.mu.Unlock()
	for _, w := range t.Wires {
		if w.Target() != addr {
			w.Lead(addr)
		}
	}
}

// Manager is Patroni: it decides which server of a group is the primary. Each method but the last
// three is about the server that is the primary at the call.
type Manager interface {
	// KillServer kills the primary, and with its host its manager, too.
	KillServer(host bool) error
	// StopManager stops the primary's manager. The primary continues meanwhile.
	StopManager() error
	// CutManager cuts the primary's manager off from etcd until it has taken its role from the
	// primary, and for that long after it.
	CutManager(after time.Duration) error
	// Switchover asks for another primary.
	Switchover() error

	// Etcd is the URL of the server in which the managers agree; EtcdServer is its process.
	Etcd() (url string, server Server)
	// Promoted waits until a server was promoted more often than before, and returns how often.
	Promoted(before int64) (now int64, err error)
	// Heal undoes what was done, and returns when every server has its role.
	Heal() error
}

func managerFaults() []*Fault {
	const evidence = "a server that was promoted since, by its own count"
	return []*Fault{
		{
			Name: "primary-kill", Kind: Manages, gate: serverGate, applies: needManager,
			About: "the primary is killed (SIGKILL), half of the time with its Patroni", Evidence: evidence,
			strike: promoting(func(t *Target, r *rand.Rand) error { return t.Manager.KillServer(r.IntN(2) == 0) }),
		},
		{
			Name: "manager-stop", Kind: Manages, gate: serverGate, applies: needManager,
			About: "the primary's Patroni pauses (SIGSTOP) until another server is promoted; the old primary continues beside it", Evidence: evidence,
			strike: promoting(func(t *Target, _ *rand.Rand) error { return t.Manager.StopManager() }),
		},
		{
			Name: "manager-cut", Kind: Manages, gate: serverGate, applies: needManager,
			About: "the primary's Patroni is cut off from etcd until it has made the primary a standby, and for a while after that", Evidence: evidence,
			strike: promoting(func(t *Target, r *rand.Rand) error { return t.Manager.CutManager(4 * t.spell(r)) }),
		},
		{
			Name: "switchover", Kind: Manages, gate: serverGate, applies: needManager,
			About: "another server is made the primary (patronictl switchover)", Evidence: evidence,
			strike: promoting(func(t *Target, _ *rand.Rand) error { return t.Manager.Switchover() }),
		},
		{
			Name: "etcd-kill", Kind: Manages, gate: serverGate, applies: needManager, strike: etcdKill,
			About: "the etcd of Patroni is killed (SIGKILL) and started again", Evidence: "an etcd that says it was started since",
		},
	}
}

func needManager(t *Target) error {
	if t.Manager == nil {
		return errors.New("the server is not under a Patroni of the run's own")
	}
	return nil
}

// promoting returns a strike that does something until another server is promoted.
func promoting(do func(*Target, *rand.Rand) error) func(context.Context, *Target, *rand.Rand) (int, error) {
	return func(_ context.Context, t *Target, r *rand.Rand) (hits int, err error) {
		before, err := t.Manager.Promoted(0)
		if err != nil {
			return 0, err
		}
		var now int64
		if err = do(t, r); err == nil {
			now, err = t.Manager.Promoted(before)
		}
		if err = errors.Join(err, t.Manager.Heal()); err == nil && now > before {
			hits = 1
		}
		return hits, err
	}
}

// etcdKill takes etcd away: sometimes for longer than a primary may go on without it.
func etcdKill(ctx context.Context, t *Target, r *rand.Rand) (hits int, err error) {
	url, server := t.Manager.Etcd()
	etcd := &Target{URL: strings.Replace(url, "http", "etcd", 1)}
	before, err := ask(ctx, etcd, witness.start)
	if err != nil {
		return 0, err
	}
	server.Kill()
	_ = backoff.Sleep(ctx, 4*t.spell(r))
	server.Restart()
	after, err := ask(ctx, etcd, witness.start)
	if err = errors.Join(err, t.Manager.Heal()); err == nil && after.after(before) {
		hits = 1
	}
	return hits, err
}
