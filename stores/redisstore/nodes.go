package redisstore

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"

	"github.com/redis/rueidis"
)

// nodes makes connections of the store's own to the server of a group. They end by being closed,
// never by being given back to the client: the client would unsubscribe them, and panic at most
// error answers.
//
// On a Cluster the client does not tell which node has a group, so any node is asked, and its
// answer names the right one.
type nodes struct {
	client rueidis.Client
	names  namer

	closing context.Context
	tasks   *sync.WaitGroup

	mu   sync.Mutex
	of   map[string]string  // the address by group, as far as it is known
	idle map[string][]*line // by address
}

// line is a connection of the store's own.
type line struct {
	rueidis.DedicatedClient
	addr    string // "" without a Cluster
	ended   <-chan error
	users   int       // of a subscriber's line
	connect sync.Once // which can take long, so it is done without a lock
}

// maxMoves bounds how many nodes of a Cluster are asked for a group, one after the other.
const maxMoves = 4

func newNodes(client rueidis.Client, names namer, closing context.Context, tasks *sync.WaitGroup) *nodes {
	return &nodes{client: client, names: names, closing: closing, tasks: tasks, of: map[string]string{}, idle: map[string][]*line{}}
}

// at returns the address of a group's server, or of another node if that is not known yet.
func (n *nodes) at(group string) (addr string, server rueidis.Client) {
	if !n.names.cluster {
		return "", n.client
	}
	all := n.client.Nodes()
	n.mu.Lock()
	defer n.mu.Unlock()
	if server, ok := all[n.of[group]]; ok {
		return n.of[group], server
	}
	for _, addr := range n.of { // a node that has answered
		if server, ok := all[addr]; ok {
			return addr, server
		}
	}
	for addr, server = range all {
		break
	}
	return addr, server
}

// connectTo makes a connection to a server that at has returned.
func connectTo(addr string, server rueidis.Client) *line {
	l := &line{addr: addr}
	l.connectTo(server)
	return l
}

// connectTo makes the connection at the first call. Other calls wait for it.
func (l *line) connectTo(server rueidis.Client) {
	l.connect.Do(func() {
		l.DedicatedClient, _ = server.Dedicate()
		l.ended = l.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(rueidis.PubSubMessage) {}})
	})
}

// take returns a connection that put was given, or a new one; nil if there is no server.
func (n *nodes) take(group string) *line {
	addr, server := n.at(group)
	if server == nil {
		return nil
	}
	n.mu.Lock()
	for idle := n.idle[addr]; len(idle) > 0; idle = n.idle[addr] {
		l := idle[len(idle)-1]
		n.idle[addr] = idle[:len(idle)-1]
		select {
		case <-l.ended: //nolint:errcheck // why it ended does not matter
			n.close(l)
			continue
		default:
		}
		n.mu.Unlock()
		return l
	}
	n.mu.Unlock()
	return connectTo(addr, server)
}

// put keeps a connection for the next caller.
func (n *nodes) put(l *line) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closing.Err() != nil {
		n.close(l)
		return
	}
	n.idle[l.addr] = append(n.idle[l.addr], l)
}

// close closes a connection, which takes up to a second if the server is silent.
func (n *nodes) close(l *line) { go l.Close() }

// end closes the idle connections.
func (n *nodes) end() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, idle := range n.idle {
		for _, l := range idle {
			n.close(l)
		}
	}
	n.idle = nil
}

// heard notes what a node's answer to a call for a group says of the group's server. It reports
// whether another node has to be asked. context.Canceled says that the node may be the wrong one.
func (n *nodes) heard(group, addr string, err error) (moved bool) {
	if !n.names.cluster {
		return false
	}
	to := addr
	answer, answered := rueidis.IsRedisErr(err)
	if answered {
		if to, moved = answer.IsMoved(); !moved {
			return false
		}
		if host, _, err := net.SplitHostPort(addr); err == nil && strings.HasPrefix(to, ":") {
			to = net.JoinHostPort(host, to[1:]) // the group's server does not know its own host
		}
	}
	_, known := n.client.Nodes()[to]
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case known && (moved || err == nil):
		n.of[group] = to
		return moved
	case answered:
		n.refresh(group)
	case err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		for group, at := range n.of { // the node does not answer
			if at == addr {
				delete(n.of, group)
			}
		}
		n.refresh(group)
	}
	delete(n.of, group)
	return false
}

// refresh has the client look for the nodes again, which it does when a call of its own fails.
func (n *nodes) refresh(group string) {
	if n.closing.Err() != nil {
		return
	}
	n.tasks.Go(func() {
		ctx, cancel := context.WithTimeout(n.closing, callLimit)
		defer cancel()
		_ = n.client.Do(ctx, n.client.B().Arbitrary("GET").Keys(n.names.fence(group)).Build()).Error()
	})
}
