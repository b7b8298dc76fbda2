package redisstore

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/store"
)

// answering is an address in front of a Redis that answers chosen commands with an error. The
// server itself gives that answer, because it gets a script instead of the command. So the
// answer comes in its turn.
type answering struct {
	addr string

	mu      sync.Mutex
	seen    map[string]bool
	command string // whose answer is wrong, in capitals; "*": every command
	answer  string // "": none
	conns   map[net.Conn]bool
}

func newAnswering(t *testing.T, server *servertest.RedisServer) *answering {
	t.Helper()
	a := &answering{seen: map[string]bool{}, conns: map[net.Conn]bool{}}
	a.addr = testkit.Serve(t, func(_ int, client *net.TCPConn) {
		conn, err := net.Dial("tcp", server.Addr())
		if err != nil {
			return
		}
		defer conn.Close()
		a.mu.Lock()
		a.conns[client] = true
		a.mu.Unlock()
		defer func() {
			a.mu.Lock()
			delete(a.conns, client)
			a.mu.Unlock()
		}()
		go func() {
			_, _ = io.Copy(client, conn)
			client.Close()
		}()
		for r := bufio.NewReader(client); ; {
			request, command, err := readRequest(r)
			if err != nil {
				return
			}
			if _, err := io.WriteString(conn, a.instead(request, command)); err != nil {
				return
			}
		}
	})
	return a
}

// instead returns the request, or the one whose answer is the error.
func (a *answering) instead(request, command string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen[command] = true
	if a.answer == "" || a.command != "*" && a.command != command {
		return request
	}
	const script = "return redis.error_reply(ARGV[1])"
	answer := strings.ReplaceAll(a.answer, "COMMAND", strings.ToLower(command))
	return fmt.Sprintf("*4\r\n$4\r\nEVAL\r\n$%d\r\n%s\r\n$1\r\n0\r\n$%d\r\n%s\r\n", len(script), script, len(answer), answer)
}

// set has a command answered so from now on.
func (a *answering) set(command, answer string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.command, a.answer = command, answer
}

// reset ends all connections, so that the client makes new ones.
func (a *answering) reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for conn := range a.conns {
		conn.Close()
	}
}

// commands returns the commands that were sent.
func (a *answering) commands() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Keys(a.seen))
}

// readRequest reads one command, and returns it as it was sent and its name in capitals.
func readRequest(r *bufio.Reader) (request, command string, err error) {
	var b strings.Builder
	line := func() (n int) {
		text, readErr := r.ReadString('\n')
		if err = readErr; err == nil {
			b.WriteString(text)
			_, err = fmt.Sscanf(text[1:], "%d", &n)
		}
		return n
	}
	for i, n := 0, line(); i < n && err == nil; i++ {
		size := line()
		if err != nil {
			break
		}
		text := make([]byte, size+2)
		if _, err = io.ReadFull(r, text); err != nil {
			break
		}
		b.Write(text)
		if i == 0 {
			command = strings.ToUpper(string(text[:size]))
		}
	}
	return b.String(), command, err
}

// answersOfRedis are answers that a server can give to any command.
var answersOfRedis = []string{
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
	"LOADING Redis is loading the dataset in memory",
	"READONLY You can't write against a read only replica.",
	"OOM command not allowed when used memory > 'maxmemory'.",
	"NOPERM User app has no permissions to run the 'COMMAND' command",
	"NOAUTH Authentication required.",
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"CLUSTERDOWN The cluster is down",
	"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
	"TRYAGAIN Multiple keys request during rehashing of slot",
	"NOREPLICAS Not enough good replicas to write.",
	"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
	"ERR unknown command 'COMMAND', with args beginning with: ",
}

// useAll calls everything that a store has once, and returns the errors.
func useAll(ctx context.Context, s *Store) (errs []error) {
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	name := store.NewToken().ID() // what an earlier call has left does not matter
	c, next := lock(name, answered), lock(name, queued)
	answers := make([]store.Answer, 1)
	add(s.Claim(ctx, []store.Claim{c}, answers))
	add(answers[0].Err)
	add(s.Claim(ctx, []store.Claim{next}, answers))
	add(answers[0].Err)
	for _, err := range s.List(ctx, store.Query{}) {
		add(err)
	}
	for _, err := range s.List(ctx, store.Query{HeldFor: longHeld, Conditions: []store.Condition{store.ConditionHeld}}) {
		add(err)
	}
	_, err := s.Check(ctx)
	add(err)
	add(renewal(ctx, s, store.Renewal{Key: c.Key, Token: c.Token, TTL: time.Hour}))
	add(settlement(ctx, s, store.Settlement{Key: next.Key, Token: next.Token, Outcome: store.Undo}))
	add(settlement(ctx, s, store.Settlement{Key: c.Key, Token: c.Token, Outcome: store.Undo}))
	return errs
}

// TestEveryAnswer: whatever a server answers to a command of the store or of its client, the
// process lives, calls end, and all is well again when the answers are. No command is sent that
// the client knows few answers to.
func TestEveryAnswer(t *testing.T) {
	t.Parallel()
	server := servertest.Redis(t, nil)
	servertest.Redis(t, &servertest.RedisOptions{ReplicaOf: server}).AwaitReplica()
	for name, parameters := range map[string]string{"alone": "", "replicated": "&replicas=1&replica-wait=1m"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAnswering(t, server)
			url := "redis://" + a.addr + "?prefix=" + testkit.Own() + parameters
			s := open(t, url, nil)
			t.Cleanup(s.Notify(func(store.Token, store.Answer) {}))
			well := func() bool { return len(useAll(t.Context(), s)) == 0 && s.subscriber.channel("") != pending }
			testkit.Eventually(t, "all is well", well)
			commands := a.commands()
			for _, command := range []string{"EVALSHA", "HELLO", "PING", "SUBSCRIBE", "PUBSUB", "GET", "ZSCAN", "INFO"} {
				if !slices.Contains(commands, command) {
					t.Errorf("%s was not sent, but %q", command, commands)
				}
			}
			for _, command := range append(commands, "*") {
				for _, answer := range answersOfRedis {
					a.set(command, answer)
					ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
					useAll(ctx, s)
					cancel()
					a.reset() // what is sent on new connections is answered so, too
					ctx, cancel = context.WithTimeout(t.Context(), 20*time.Millisecond)
					useAll(ctx, s)
					if other, err := Open(ctx, url, nil); err == nil {
						other.Close()
					}
					cancel()
					a.set("", "")
				}
				testkit.Eventually(t, "all is well after wrong answers to "+command, well)
			}
			for _, command := range a.commands() {
				if strings.Contains(command, "UNSUBSCRIBE") {
					t.Errorf("%s was sent", command)
				}
			}
		})
	}
}
