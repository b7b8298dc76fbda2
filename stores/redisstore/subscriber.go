package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/internal/backoff"
	"github.com/dibs-go/dibs/store"
	"github.com/dibs-go/dibs/store/storekit"
)

// subscriber receives what the scripts publish for this process. It subscribes when the
// first waiter joins a queue, on one connection to each server: to the channel of the process, or
// on a cluster to one channel for each group of keys with waiters.
type subscriber struct {
	client  rueidis.Client
	names   namer
	nodes   *nodes
	process string    // in the names of this process's channels
	epoch   time.Time // the start of lastWait

	closing context.Context
	end     context.CancelFunc
	tasks   sync.WaitGroup

	listeners storekit.Listeners

	mu       sync.Mutex
	channels map[string]*channel // by group
	lines    map[string]*line    // by address: where new subscriptions are made
}

// channel is a subscription.
type channel struct {
	group       string
	name        string
	open        atomic.Bool  // confirmed by the server
	lastWait    atomic.Int64 // time of the last wait, since the epoch
	leave       context.CancelFunc
	unconfirmed []store.Token // waiters to notify when it opens; under the subscriber's lock
}

const (
	// maxUnconfirmed bounds the waiters that ask again when the subscription is open.
	maxUnconfirmed = 4096
	// listenIdle is how long a cluster's channel is kept after the last wait.
	listenIdle = time.Minute
	// A subscription is checked every listenCheck until listenWaits after the last
	// wait. A waiter asks at least every two seconds.
	listenCheck = time.Second
	listenWaits = 5 * time.Second
)

// listenAgain is the pause before a lost subscription is made again.
var listenAgain = backoff.Exponential{Min: 10 * time.Millisecond, Max: time.Second}

func newSubscriber(client rueidis.Client, names namer) *subscriber {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	e := &subscriber{
		client: client, names: names, process: hex.EncodeToString(id[:]), epoch: time.Now(),
		channels: make(map[string]*channel), lines: make(map[string]*line),
	}
	e.closing, e.end = context.WithCancel(context.Background())
	e.nodes = newNodes(client, names, e.closing, &e.tasks)
	return e
}

func (e *subscriber) close() {
	e.mu.Lock() // no listen may begin after this
	e.end()
	e.mu.Unlock()
	e.nodes.end()
	e.tasks.Wait()
}

// Relay implements store.Relayer.
func (s *Store) Relay() {
	e := s.subscriber
	e.mu.Lock()
	defer e.mu.Unlock()
	e.process += "r" // see lua/queue.lua
}

// pending is the name of a channel that is not open yet.
const pending = "?"

// channel returns the channel for a group: pending if it is not open yet, and "" when
// this process does not listen.
func (e *subscriber) channel(group string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch c := e.channels[group]; {
	case !e.listeners.Any():
		return ""
	case c == nil || !c.open.Load():
		return pending
	default:
		return c.name
	}
}

// noteWait records a wait for a key of the group.
func (e *subscriber) noteWait(group string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.channels[group]; c != nil {
		c.lastWait.Store(int64(time.Since(e.epoch)))
	}
}

// listen subscribes to a group. When the subscription is open, the unconfirmed waiters
// ask again, because their places do not have the channel's name yet.
func (e *subscriber) listen(group string, unconfirmed []store.Token) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closing.Err() != nil || !e.listeners.Any() {
		return
	}
	c := e.channels[group]
	if c == nil {
		c = &channel{group: group, name: e.names.channel(group, e.process)}
		var ctx context.Context
		ctx, c.leave = context.WithCancel(e.closing)
		e.channels[group] = c
		defer e.tasks.Go(func() { e.attend(ctx, c) })
	}
	c.lastWait.Store(int64(time.Since(e.epoch)))
	if room := maxUnconfirmed - len(c.unconfirmed); len(unconfirmed) > room {
		unconfirmed = unconfirmed[:room] // the others ask again later
	}
	c.unconfirmed = append(c.unconfirmed, unconfirmed...)
	if c.open.Load() {
		e.tasks.Go(func() { e.opened(c) })
	}
}

// opened lets the unconfirmed waiters ask again.
func (e *subscriber) opened(c *channel) {
	e.mu.Lock()
	unconfirmed := c.unconfirmed
	c.unconfirmed = nil
	e.mu.Unlock()
	for _, t := range unconfirmed {
		e.listeners.Wake(t, store.Answer{})
	}
}

// idle returns the time since the last wait for a key of the group.
func (e *subscriber) idle(c *channel) time.Duration {
	return time.Since(e.epoch) - time.Duration(c.lastWait.Load())
}

// attend keeps a channel subscribed until the context ends, or on a cluster until the
// channel is idle.
func (e *subscriber) attend(ctx context.Context, c *channel) {
	defer c.leave()
	for failed := 1; ctx.Err() == nil; failed++ {
		if e.names.cluster && e.idle(c) > listenIdle {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.channels[c.group] == c {
				delete(e.channels, c.group)
			}
			return
		}
		start := time.Now()
		e.subscribe(ctx, c)
		c.open.Store(false)
		if time.Since(start) > listenAgain.Max {
			failed = 1
		}
		_ = listenAgain.Wait(ctx, failed)
	}
}

// subscribe receives messages until the connection is lost, or leads to a server that is
// no longer a master.
func (e *subscriber) subscribe(ctx context.Context, c *channel) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	confirmed := make(chan struct{}, 1)
	hooked := rueidis.WithOnSubscriptionHook(ctx, func(s rueidis.PubSubSubscription) {
		if s.Kind != "subscribe" && s.Kind != "ssubscribe" {
			c.open.Store(false)
			return
		}
		c.open.Store(true)
		e.opened(c)
		select {
		case confirmed <- struct{}{}:
		default:
		}
	})
	e.tasks.Go(func() {
		e.check(ctx, c, confirmed)
		end()
	})
	_ = e.onLine(c, func(l *line) error {
		defer c.open.Store(false)
		subscribe := l.B().Subscribe().Channel(c.name).Build()
		if e.names.cluster {
			subscribe = l.B().Ssubscribe().Channel(c.name).Build()
		}
		return l.Receive(hooked, subscribe, e.receive)
	})
}

// onLine subscribes through a connection that all channels on one server share. It is closed with
// its last channel. A channel that is left before stays subscribed, which does no harm.
func (e *subscriber) onLine(c *channel, receive func(*line) error) error {
	addr, server := e.nodes.at(c.group)
	if server == nil {
		return ErrUnreachable
	}
	e.mu.Lock()
	l := e.lines[addr]
	if l == nil {
		l = &line{addr: addr}
		e.lines[addr] = l
	}
	l.users++
	e.mu.Unlock()
	l.connectTo(server) // without the lock, because a server that hangs must hold no claim up
	err := receive(l)
	_, refused := rueidis.IsRedisErr(err)
	e.nodes.heard(c.group, addr, cmp.Or(err, context.Canceled))
	e.mu.Lock()
	defer e.mu.Unlock()
	l.users--
	// On a new connection the next time: the last one may be broken, or lead to a replica.
	if idle := e.names.cluster && e.idle(c) > listenIdle; (!refused && !idle || l.users == 0) && e.lines[addr] == l {
		delete(e.lines, addr)
	}
	if l.users == 0 {
		e.nodes.close(l)
	}
	return err
}

// check returns when the subscription is useless. A connection made during a failover may
// lead to the old master, which is a replica now. Messages arrive there, too, but the new
// master counts no listener and passes over all waiters of this process.
func (e *subscriber) check(ctx context.Context, c *channel, confirmed <-chan struct{}) {
	ticker := time.NewTicker(listenCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-confirmed:
		case <-ticker.C:
			switch idle := e.idle(c); {
			case e.names.cluster && idle > listenIdle:
				return
			case !c.open.Load() || idle > listenWaits:
				continue
			}
		}
		if e.numsub(c) == 0 && ctx.Err() == nil {
			return
		}
	}
}

// numsub returns the master's count of listeners of the channel, or -1. The call has no
// deadline, because a client closes the shared connection at a deadline.
func (e *subscriber) numsub(c *channel) int64 {
	ctx, cancel := context.WithCancel(e.closing)
	defer cancel()
	defer time.AfterFunc(callLimit, cancel).Stop()
	// B().PubsubNumsub() would go to a replica if the client reads from replicas.
	ask := e.client.B().Arbitrary("PUBSUB", "NUMSUB").Args(c.name).Build()
	if e.names.cluster {
		ask = e.client.B().PubsubShardnumsub().Channel(c.name).Build()
	}
	n, err := e.client.Do(ctx, ask).AsIntMap()
	if err != nil {
		return -1
	}
	return n[c.name]
}

// receive reads a published message: a token that should ask again, or a token and the
// fence of its pushed grant. Grants after an abandoned lease are never pushed, so this is
// the first attempt.
func (e *subscriber) receive(m rueidis.PubSubMessage) {
	const tokenLen = len(store.Token{})
	var t store.Token
	var a store.Answer
	if copy(t[:], m.Message) < tokenLen {
		return
	}
	if rest := []byte(m.Message[tokenLen:]); len(rest) == 8 {
		a = store.Answer{State: store.Granted, Fence: binary.BigEndian.Uint64(rest), Attempt: 1}
	}
	e.listeners.Wake(t, a)
}

// Notify implements store.Notifier. Subscriptions end with the last listener.
func (s *Store) Notify(wake func(store.Token, store.Answer)) (stop func()) {
	e := s.subscriber
	unregister := e.listeners.Notify(wake)
	return sync.OnceFunc(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if unregister(); e.listeners.Any() {
			return
		}
		for group, c := range e.channels {
			c.leave()
			delete(e.channels, group)
		}
	})
}
