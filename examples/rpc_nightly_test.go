//go:build nightly

package examples

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/dibs-go/dibs/internal/prove/servertest"
	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// startDibs starts a proxy in front of an origin that speaks HTTP/2 without TLS, and
// returns its address.
func startDibs(t *testing.T, origin string) string {
	t.Helper()
	program, err := servertest.Dibs()
	testkit.Must(t, err)
	cmd := exec.Command(program, "proxy", "--listen", "127.0.0.1:0", "--upstream", "h2c://"+origin, "--store", "memory:")
	out, err := cmd.StdoutPipe()
	testkit.Must(t, err)
	testkit.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the proxy ended with %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	addr := regexp.MustCompile(`listening on http://([0-9.:]+)`).FindStringSubmatch(line)
	if addr == nil {
		t.Fatalf("the proxy says %q, %v", line, err)
	}
	return addr[1]
}

// orders is the service behind the proxy. What it is asked to order says how it behaves.
type orders struct {
	mu   sync.Mutex
	runs map[string]int

	slowBegan chan struct{} // the order "slow" has begun
	slowEnds  chan struct{} // and continues when this is closed
	slowErr   error         // what had ended its context by then
	slowLimit time.Duration // how long its context had when it began
}

func newOrders() *orders {
	return &orders{runs: make(map[string]int), slowBegan: make(chan struct{}), slowEnds: make(chan struct{})}
}

// place runs an order and returns its number; unavailable says that it failed.
func (o *orders) place(ctx context.Context, what string) (answer string, unavailable bool) {
	o.mu.Lock()
	o.runs[what]++
	run := o.runs[what]
	o.mu.Unlock()
	switch {
	case what == "fails first" && run == 1:
		return "", true
	case what == "slow" && run == 1:
		if end, ok := ctx.Deadline(); ok {
			o.slowLimit = time.Until(end)
		}
		close(o.slowBegan)
		<-o.slowEnds
		o.slowErr = ctx.Err()
	}
	return what + " " + strconv.Itoa(run), false
}

func (o *orders) ran(what string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.runs[what]
}

// A caller sends an order with a key, and returns the answer and its code.
type caller func(ctx context.Context, key, what string) (string, codes.Code)

// checkUnary checks what is promised of calls with one message each way.
func checkUnary(t *testing.T, o *orders, call caller) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	is := func(what, got string, code codes.Code, want string, wantCode codes.Code) {
		t.Helper()
		if got != want || code != wantCode {
			t.Errorf("%s is %q, %v; want %q, %v", what, got, code, want, wantCode)
		}
	}

	got, code := call(ctx, "one", "book")
	is("the first answer", got, code, "book 1", codes.OK)
	got, code = call(ctx, "one", "book")
	is("the retry's answer", got, code, "book 1", codes.OK)
	got, code = call(ctx, "one", "another book")
	is("the answer to another order", got, code, "", codes.InvalidArgument)
	if o.ran("book") != 1 || o.ran("another book") != 0 {
		t.Errorf("the order ran %d times, and the other one %d times", o.ran("book"), o.ran("another book"))
	}

	got, code = call(ctx, "two", "fails first")
	is("the failure", got, code, "", codes.Unavailable)
	got, code = call(ctx, "two", "fails first")
	is("the answer after the failure", got, code, "fails first 2", codes.OK)
	got, code = call(ctx, "two", "fails first")
	is("the answer after that", got, code, "fails first 2", codes.OK)
	if o.ran("fails first") != 2 {
		t.Errorf("the order ran %d times", o.ran("fails first"))
	}

	// A busy machine may not get an order there within its deadline: it is sent again.
	for begun := false; !begun; {
		hurried, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		_, code := call(hurried, "three", "slow")
		cancel()
		if code != codes.DeadlineExceeded && code != codes.Aborted {
			t.Fatalf("with a deadline of 200ms the answer is %v", code)
		}
		select {
		case <-o.slowBegan:
			begun = true
		case <-ctx.Done():
			t.Fatal("the order does not arrive")
		default:
		}
	}
	got, code = call(ctx, "three", "slow")
	is("the answer to a duplicate", got, code, "", codes.Aborted)
	close(o.slowEnds)
	for got, code = call(ctx, "three", "slow"); code == codes.Aborted; {
		got, code = call(ctx, "three", "slow")
	}
	is("the answer after the deadline", got, code, "slow 1", codes.OK)
	if o.ran("slow") != 1 || o.slowErr != nil || o.slowLimit > 0 && o.slowLimit < time.Second {
		t.Errorf("the order ran %d times, its context ended with %v, and had %v", o.ran("slow"), o.slowErr, o.slowLimit)
	}
}

// TestItem4GRPC: grpc-go as client and server, with the proxy between them.
func TestItem4GRPC(t *testing.T) {
	t.Parallel()
	o := newOrders()
	echo := func(_ any, s grpc.ServerStream) error {
		for {
			in := new(wrapperspb.StringValue)
			if err := s.RecvMsg(in); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			answer, _ := o.place(s.Context(), in.GetValue())
			if err := s.SendMsg(wrapperspb.String(answer)); err != nil {
				return err
			}
		}
	}
	server := grpc.NewServer()
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "shop.Orders",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: "Place",
			Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				in := new(wrapperspb.StringValue)
				if err := decode(in); err != nil {
					return nil, err
				}
				answer, unavailable := o.place(ctx, in.GetValue())
				if unavailable {
					return nil, status.Error(codes.Unavailable, "later")
				}
				return wrapperspb.String(answer), nil
			},
		}},
		Streams: []grpc.StreamDesc{{StreamName: "Chat", Handler: echo, ServerStreams: true, ClientStreams: true}},
	}, nil)
	l := testkit.Listen(t)
	go func() { _ = server.Serve(l) }() // it ends with Stop
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///"+startDibs(t, l.Addr().String()), grpc.WithTransportCredentials(insecure.NewCredentials()))
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	with := func(ctx context.Context, key string) context.Context {
		return metadata.AppendToOutgoingContext(ctx, "idempotency-key", `"`+key+`"`)
	}

	checkUnary(t, o, func(ctx context.Context, key, what string) (string, codes.Code) {
		out := new(wrapperspb.StringValue)
		err := conn.Invoke(with(ctx, key), "/shop.Orders/Place", wrapperspb.String(what), out)
		return out.GetValue(), status.Code(err)
	})

	ctx, cancel := context.WithTimeout(t.Context(), testkit.Limit)
	defer cancel()
	chat := func(ctx context.Context) grpc.ClientStream {
		t.Helper()
		s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/shop.Orders/Chat")
		testkit.Must(t, err)
		return s
	}
	say := func(s grpc.ClientStream, what string) (string, error) {
		t.Helper()
		testkit.Must(t, s.SendMsg(wrapperspb.String(what)))
		out := new(wrapperspb.StringValue)
		err := s.RecvMsg(out)
		return out.GetValue(), err
	}
	if got, err := say(chat(with(ctx, "stream")), "guarded"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a stream in both directions with a key is answered %q, %v", got, err)
	}
	s := chat(ctx)
	for i := range 3 {
		if got, err := say(s, "free"); got != "free "+strconv.Itoa(i+1) || err != nil {
			t.Errorf("message %d without a key is answered %q, %v", i+1, got, err)
		}
	}
	if err := errors.Join(s.CloseSend(), s.RecvMsg(new(wrapperspb.StringValue))); !errors.Is(err, io.EOF) {
		t.Errorf("the stream ends with %v", err)
	}
	// A stream that the client ends by itself is a request like any other.
	for range 2 {
		s := chat(with(ctx, "short stream"))
		testkit.Must(t, errors.Join(s.SendMsg(wrapperspb.String("short")), s.SendMsg(wrapperspb.String("short")), s.CloseSend()))
		for i := range 2 {
			out := new(wrapperspb.StringValue)
			if err := s.RecvMsg(out); err != nil || out.GetValue() != "short "+strconv.Itoa(i+1) {
				t.Errorf("message %d of a short stream is answered %q, %v", i+1, out.GetValue(), err)
			}
		}
		if err := s.RecvMsg(new(wrapperspb.StringValue)); !errors.Is(err, io.EOF) { // it is stored then
			t.Errorf("a short stream ends with %v", err)
		}
	}
	if o.ran("guarded") != 0 || o.ran("short") != 2 {
		t.Errorf("the refused message ran %d times, and the two of the short stream %d times", o.ran("guarded"), o.ran("short"))
	}
}

// TestItem4Connect: connect-go as client and server, in its own protocol and in both of
// gRPC's.
func TestItem4Connect(t *testing.T) {
	t.Parallel()
	for name, options := range map[string][]connect.ClientOption{
		"Connect":      nil,
		"Connect JSON": {connect.WithProtoJSON()},
		"gRPC":         {connect.WithGRPC()},
		"gRPC-Web":     {connect.WithGRPCWeb()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOrders()
			mux := http.NewServeMux()
			mux.Handle("/shop.Orders/Place", connect.NewUnaryHandler("/shop.Orders/Place",
				func(ctx context.Context, r *connect.Request[wrapperspb.StringValue]) (*connect.Response[wrapperspb.StringValue], error) {
					answer, unavailable := o.place(ctx, r.Msg.GetValue())
					if unavailable {
						return nil, connect.NewError(connect.CodeUnavailable, errors.New("later"))
					}
					return connect.NewResponse(wrapperspb.String(answer)), nil
				}))
			protocols := new(http.Protocols)
			protocols.SetUnencryptedHTTP2(true)
			server := &http.Server{Handler: mux, Protocols: protocols, ReadHeaderTimeout: testkit.Limit}
			l := testkit.Listen(t)
			go func() { _ = server.Serve(l) }() // it ends with Close
			t.Cleanup(func() { _ = server.Close() })
			transport := &http.Transport{Protocols: protocols}
			t.Cleanup(transport.CloseIdleConnections)
			client := connect.NewClient[wrapperspb.StringValue, wrapperspb.StringValue](
				&http.Client{Transport: transport}, "http://"+startDibs(t, l.Addr().String())+"/shop.Orders/Place", options...)
			checkUnary(t, o, func(ctx context.Context, key, what string) (string, codes.Code) {
				r := connect.NewRequest(wrapperspb.String(what))
				r.Header().Set("Idempotency-Key", `"`+key+`"`)
				answer, err := client.CallUnary(ctx, r)
				if err != nil {
					return "", codes.Code(connect.CodeOf(err))
				}
				return answer.Msg.GetValue(), codes.OK
			})
		})
	}
}
