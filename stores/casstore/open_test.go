package casstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
	"github.com/dibs-go/dibs/stores/casstore"
)

// kv is a KV with other methods than its own.
type kv struct {
	casstore.KV
	get func(ctx context.Context, name string) ([]byte, string, error)
	put func(ctx context.Context, name string, value []byte, version string) (string, error)
	del func(ctx context.Context, name, version string) error
}

func (k *kv) Get(ctx context.Context, name string) ([]byte, string, error) {
	if k.get == nil {
		return k.KV.Get(ctx, name)
	}
	return k.get(ctx, name)
}

func (k *kv) Put(ctx context.Context, name string, value []byte, version string) (string, error) {
	if k.put == nil {
		return k.KV.Put(ctx, name, value, version)
	}
	return k.put(ctx, name, value, version)
}

func (k *kv) Delete(ctx context.Context, name, version string) error {
	if k.del == nil {
		return k.KV.Delete(ctx, name, version)
	}
	return k.del(ctx, name, version)
}

// TestOpenRefusesEnginesThatIgnoreConditions: of each condition that a KV promises.
func TestOpenRefusesEnginesThatIgnoreConditions(t *testing.T) {
	m := &casstore.Memory{}
	force := func(ctx context.Context, name string, value []byte) (string, error) {
		_, version, err := m.Get(ctx, name)
		if err != nil {
			return "", err
		}
		return m.Put(ctx, name, value, version)
	}
	put := func(ignores func(there bool, version string) bool) *kv {
		return &kv{KV: m, put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
			_, now, err := m.Get(ctx, name)
			testkit.Check(t, err)
			if ignores(now != "", version) {
				return force(ctx, name, value)
			}
			return m.Put(ctx, name, value, version)
		}}
	}
	for what, k := range map[string]casstore.KV{
		"makes an object that is there":       put(func(_ bool, version string) bool { return version == "" }),
		"replaces an object that has changed": put(func(there bool, version string) bool { return version != "" && there }),
		"replaces an object that is gone":     put(func(there bool, version string) bool { return version != "" && !there }),
		"deletes an object that has changed": &kv{KV: m, del: func(ctx context.Context, name, _ string) error {
			_, version, err := m.Get(ctx, name)
			testkit.Check(t, err)
			return m.Delete(ctx, name, version)
		}},
		"does not delete": &kv{KV: m, del: func(ctx context.Context, name, version string) error {
			if _, now, _ := m.Get(ctx, name); now != version {
				return casstore.ErrConflict
			}
			return nil
		}},
		"has one version for all states": &kv{
			KV: m,
			get: func(ctx context.Context, name string) ([]byte, string, error) {
				raw, version, err := m.Get(ctx, name)
				if version != "" {
					version = "1"
				}
				return raw, version, err
			},
			put: func(ctx context.Context, name string, value []byte, version string) (string, error) {
				_, now, _ := m.Get(ctx, name)
				if (now == "") != (version == "") {
					return "", casstore.ErrConflict
				}
				_, err := m.Put(ctx, name, value, now)
				return "1", err
			},
		},
		"reads what was there before": &kv{KV: m, get: func() func(ctx context.Context, name string) ([]byte, string, error) {
			old := &casstore.Memory{}
			return func(ctx context.Context, name string) ([]byte, string, error) {
				raw, _, err := m.Get(ctx, name)
				testkit.Check(t, err)
				was, version, err := old.Get(ctx, name)
				testkit.Check(t, err)
				_, err = old.Put(ctx, name, raw, version)
				return was, version, err
			}
		}()},
	} {
		if s, err := casstore.Open(t.Context(), k, nil); !errors.Is(err, casstore.ErrUnconditional) {
			t.Errorf("an engine that %s: %v, want ErrUnconditional", what, err)
			if err == nil {
				testkit.Check(t, s.Close())
			}
		}
	}
	s, err := casstore.Open(t.Context(), m, nil)
	testkit.Must(t, err)
	testkit.Check(t, s.Close())
}

// TestOpenNamesTheWrongOption: each is refused by its name.
func TestOpenNamesTheWrongOption(t *testing.T) {
	for want, o := range map[string]*casstore.Options{
		"Tick":       {Tick: 1},
		"MaxWaiters": {MaxWaiters: -1},
		"MaxObject":  {MaxObject: -1},
		"PruneEvery": {PruneEvery: 1},
	} {
		_, err := casstore.Open(t.Context(), &casstore.Memory{}, o)
		if err == nil || !strings.Contains(err.Error(), "Options."+want+" ") {
			t.Errorf("%v, want an error about Options.%s", err, want)
		}
	}
}
