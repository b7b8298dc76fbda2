package redisstore

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/rueidis"

	"github.com/dibs-go/dibs/store/storekit"
)

// server is what one server tells about itself. What the user may not ask is missing.
type server struct {
	addr   string
	client rueidis.Client

	hello  map[string]string // HELLO
	info   map[string]string // INFO
	config map[string]string // CONFIG GET of the parameters
	clock  storekit.ClockReading
	timed  bool // the user may ask for the time
}

// configured are the parameters of the configuration that Check reads. A server without
// one of them does not return it.
var configured = []string{
	"maxmemory", "maxmemory-policy", "appendonly", "appendfsync", "save",
	"min-replicas-to-write", "cluster-allow-reads-when-down",
}

// servers asks all servers in parallel. It returns an error if one does not answer.
func (s *Store) servers(ctx context.Context) ([]*server, error) {
	nodes := s.client.Nodes()
	all := make([]*server, len(nodes))
	errs := make([]error, len(nodes))
	var asked sync.WaitGroup
	for i, addr := range slices.Sorted(maps.Keys(nodes)) {
		all[i] = &server{addr: addr, client: nodes[addr]}
		asked.Go(func() { errs[i] = all[i].ask(ctx) })
	}
	asked.Wait()
	return all, errors.Join(errs...)
}

func (v *server) ask(ctx context.Context) error {
	b := v.client.B
	var err error
	v.clock, err = storekit.ReadClock(func() (shows int64, err error) {
		clock, err := v.client.Do(ctx, b().Time().Build()).AsIntSlice()
		if err == nil && len(clock) != 2 {
			return 0, explainForeign()
		}
		if err == nil {
			shows = clock[0]*1e6 + clock[1]
		}
		return shows, explained("TIME", err)
	})
	v.timed = err == nil
	if err != nil && !errors.Is(err, ErrUnauthorized) {
		return err
	}
	v.hello, v.info, v.config = map[string]string{}, map[string]string{}, map[string]string{}
	hello, err := v.client.Do(ctx, b().Arbitrary("HELLO").Build()).AsMap()
	if err != nil {
		return explain("HELLO", err)
	}
	for name, m := range hello {
		if text, err := m.ToString(); err == nil {
			v.hello[name] = text
		}
	}
	// The user may lack the rights for these, or a managed server may not have them.
	if info, err := v.client.Do(ctx, b().Info().Build()).ToString(); err == nil {
		v.info = fields(info)
	}
	for _, name := range configured {
		got, err := v.client.Do(ctx, b().ConfigGet().Parameter(name).Build()).AsStrMap()
		if value, ok := got[name]; ok && err == nil {
			v.config[name] = value
		}
	}
	return ctx.Err()
}

// fields reads the text of INFO.
func fields(info string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			all[name] = value
		}
	}
	return all
}

// setting returns a parameter of the configuration, or the INFO field of the same
// meaning.
func (v *server) setting(parameter, info string) (value string, known bool) {
	if value, known = v.config[parameter]; !known && info != "" {
		value, known = v.info[info]
	}
	return value, known
}

// number is setting for numbers.
func (v *server) number(parameter, info string) (n int64, known bool) {
	text, known := v.setting(parameter, info)
	if !known {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n, err == nil
}

// master reports whether the server is not a replica.
func (v *server) master() bool { return v.hello["role"] != "replica" && v.hello["role"] != "slave" }
