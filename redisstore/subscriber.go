package redisstore

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs"
	"github.com/dibs-go/dibs/internal/backend"
)

// subscriber hears what the scripts publish for this process. Nobody is listened for
// until somebody waits: then one connection subscribes to the process's own
// channel, or on a cluster to one channel for each group of keys that somebody
// waits for.
type subscriber struct {
	client  rueidis.Client
	names   namer
	process string    // names this process's channels
	epoch   time.Time // where times are counted from

	life  context.Context
	end   context.CancelFunc
	tasks sync.WaitGroup

	listeners backend.Listeners

	mu       sync.Mutex
	channels map[string]*channel // by group
}

// channel is a subscription.
type channel struct {
	group string
	name  string
	open  atomic.Bool  // the server has confirmed it
	waits atomic.Int64 // when somebody last waited, since the epoch
	leave context.CancelFunc
	deaf  []dibs.Token // who waits for it to open; under the subscriber's lock
}

const (
	// maxDeaf is how many are told that they are listened for.
	maxDeaf = 4096
	// listenIdle is how long a cluster's channel is kept after somebody waited.
	listenIdle = time.Minute
	// listenCheck is how often a subscription is checked, while somebody waits, which
	// is seen at least every two seconds.
	listenCheck = time.Second
	listenWaits = 5 * time.Second
	// How soon a lost subscription is tried again.
	listenBackoffMin = 10 * time.Millisecond
	listenBackoffMax = time.Second
)

func newSubscriber(client rueidis.Client, names namer) *subscriber {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails; see its documentation
	e := &subscriber{
		client: client, names: names, process: hex.EncodeToString(id[:]), epoch: time.Now(),
		channels: make(map[string]*channel),
	}
	e.life, e.end = context.WithCancel(context.Background())
	return e
}

func (e *subscriber) close() {
	e.mu.Lock() // whoever listens now is waited for, and nobody after
	e.end()
	e.mu.Unlock()
	e.tasks.Wait()
}

// soon stands for the name of a channel that is not open yet.
const soon = "?"

// channel returns the name of the channel on which this process hears of a group, soon
// if that is not open yet, and "" when nobody listens.
func (e *subscriber) channel(group string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch c := e.channels[group]; {
	case !e.listeners.Any():
		return ""
	case c == nil || !c.open.Load():
		return soon
	default:
		return c.name
	}
}

// waited notes that somebody waits for a key of a group.
func (e *subscriber) waited(group string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.channels[group]; c != nil {
		c.waits.Store(int64(time.Since(e.epoch)))
	}
}

// listen sees to it that a group is listened for, and has those tokens ask again
// as soon as it is: their places do not know yet where to reach them.
func (e *subscriber) listen(group string, deaf []dibs.Token) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.life.Err() != nil || !e.listeners.Any() {
		return
	}
	c := e.channels[group]
	if c == nil {
		c = &channel{group: group, name: e.names.channel(group, e.process)}
		var life context.Context
		life, c.leave = context.WithCancel(e.life)
		e.channels[group] = c
		defer e.tasks.Go(func() { e.attend(life, c) })
	}
	c.waits.Store(int64(time.Since(e.epoch)))
	if room := maxDeaf - len(c.deaf); len(deaf) > room {
		deaf = deaf[:room] // hints: the others ask soon anyway
	}
	c.deaf = append(c.deaf, deaf...)
	if c.open.Load() {
		e.tasks.Go(func() { e.opened(c) })
	}
}

// opened tells those who wait that they are listened for.
func (e *subscriber) opened(c *channel) {
	e.mu.Lock()
	deaf := c.deaf
	c.deaf = nil
	e.mu.Unlock()
	for _, t := range deaf {
		e.listeners.Wake(t, dibs.Answer{})
	}
}

// idle returns for how long nobody has waited for a key of a channel's group.
func (e *subscriber) idle(c *channel) time.Duration {
	return time.Since(e.epoch) - time.Duration(c.waits.Load())
}

// attend keeps a channel subscribed until its life ends, or on a cluster until nobody has
// waited for a while.
func (e *subscriber) attend(life context.Context, c *channel) {
	defer c.leave()
	backoff := listenBackoffMin
	for life.Err() == nil {
		if e.names.cluster && e.idle(c) > listenIdle {
			e.mu.Lock()
			defer e.mu.Unlock()
			if e.channels[c.group] == c {
				delete(e.channels, c.group)
			}
			return
		}
		start := time.Now()
		e.subscribe(life, c)
		c.open.Store(false)
		if time.Since(start) > listenBackoffMax {
			backoff = listenBackoffMin
		}
		pause := time.NewTimer(backoff)
		select {
		case <-pause.C:
		case <-life.Done():
		}
		pause.Stop()
		backoff = min(2*backoff, listenBackoffMax)
	}
}

// subscribe hears what is said on a channel until the connection is lost, or leads
// to one that is no master any more.
func (e *subscriber) subscribe(life context.Context, c *channel) {
	life, end := context.WithCancel(life)
	defer end()
	confirmed := make(chan struct{}, 1)
	ctx := rueidis.WithOnSubscriptionHook(life, func(s rueidis.PubSubSubscription) {
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
		e.check(life, c, confirmed)
		end()
	})
	if e.names.cluster {
		_ = e.client.Receive(ctx, e.client.B().Ssubscribe().Channel(c.name).Build(), e.hear)
		c.open.Store(false)
		if life.Err() != nil {
			e.unsubscribe(c)
		}
		return
	}
	// On a connection of its own, so that what is heard waits behind no answer; and anew
	// each time, as it may be its fault that it came to an end.
	_ = e.client.Dedicated(func(own rueidis.DedicatedClient) error {
		defer own.Close()
		defer c.open.Store(false)
		return own.Receive(ctx, own.B().Subscribe().Channel(c.name).Build(), e.hear)
	})
}

// check returns when a subscription does not count, or its life is over. A connection
// that was made during a failover may lead to the old master, which lives on as a
// replica: what is published is heard there too, but the new master counts nobody, and
// passes over all who wait in this process.
func (e *subscriber) check(life context.Context, c *channel, confirmed <-chan struct{}) {
	ticker := time.NewTicker(listenCheck)
	defer ticker.Stop()
	for {
		select {
		case <-life.Done():
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
		if e.numsub(c) == 0 && life.Err() == nil {
			return
		}
	}
}

// numsub returns how many listen on a channel, as its master says; -1 when it does not.
// The call has no deadline: claims may use the same connection, and a client closes that
// at a call's deadline.
func (e *subscriber) numsub(c *channel) int64 {
	ctx, cancel := context.WithCancel(e.life)
	defer cancel()
	defer time.AfterFunc(callLimit, cancel).Stop()
	// Not by B().PubsubNumsub(): what that makes is sent to a replica by clients that
	// read from those.
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

// unsubscribe ends what the end of listening does not end on a connection that
// others use too. Who waits in vain must not be taken for one that hears.
func (e *subscriber) unsubscribe(c *channel) {
	ctx, cancel := context.WithTimeout(context.Background(), listenBackoffMax)
	defer cancel()
	_ = e.client.Do(ctx, e.client.B().Sunsubscribe().Channel(c.name).Build()).Error()
}

// hear takes what a script published: a token that should ask again, or one with its
// grant's fence. No grant after an abandoned lease is told, so it is the first attempt.
func (e *subscriber) hear(m rueidis.PubSubMessage) {
	const tokenLen = len(dibs.Token{})
	var t dibs.Token
	var a dibs.Answer
	if copy(t[:], m.Message) < tokenLen {
		return
	}
	if rest := []byte(m.Message[tokenLen:]); len(rest) == 8 {
		a = dibs.Answer{State: dibs.Granted, Fence: binary.BigEndian.Uint64(rest), Attempt: 1}
	}
	e.listeners.Wake(t, a)
}

// Notify implements dibs.Notifier. When the last one stops, nobody is listened for.
func (s *Store) Notify(wake func(dibs.Token, dibs.Answer)) (stop func()) {
	e := s.subscriber
	gone := e.listeners.Notify(wake)
	return sync.OnceFunc(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if gone(); e.listeners.Any() {
			return
		}
		for group, c := range e.channels {
			c.leave()
			delete(e.channels, group)
		}
	})
}
