package fault

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// serveWitness is the witness of a dibs serve, or of an etcd, which has the same page of metrics.
// It makes a connection for each question.
type serveWitness struct{ metrics string }

func meetServe(_ context.Context, storeURL string) (witness, error) {
	u, err := url.Parse(storeURL)
	if err != nil {
		return nil, errors.New("the URL of the server cannot be read") // without the token in it
	}
	if u.Scheme == "etcd" {
		u.Scheme = "http"
	}
	return &serveWitness{u.JoinPath("metrics").String()}, nil
}

// start reads when the server's process was started.
func (w *serveWitness) start(ctx context.Context) (start, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.metrics, nil)
	if err != nil {
		return start{}, err
	}
	if token, ok := r.URL.User.Password(); ok {
		r.URL.User = nil
		r.Header.Set("Authorization", "Bearer "+token)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		return start{}, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		if at, ok := strings.CutPrefix(lines.Text(), "process_start_time_seconds "); ok {
			return start{id: at}, nil
		}
	}
	return start{}, errors.Join(fmt.Errorf("GET /metrics: %s without the time of the start", resp.Status), lines.Err())
}

var errNotServe = errors.New("the server cannot be asked for that")

func (*serveWitness) now(context.Context) (time.Time, error)             { return time.Time{}, errNotServe }
func (*serveWitness) sever(context.Context, []*net.TCPAddr) (int, error) { return 0, errNotServe }
func (*serveWitness) close()                                             {}
