package leaseapi

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/dibs-go/dibs/internal/prove/testkit"
)

// TestDescription: the OpenAPI document has the fields that are written and read, no others.
func TestDescription(t *testing.T) {
	var d struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]struct{ Enum []string }
			}
		}
	}
	testkit.Must(t, json.Unmarshal(Description, &d))
	schema := func(name string) []string { return slices.Sorted(maps.Keys(d.Components.Schemas[name].Properties)) }
	for name, written := range map[string]any{
		"Claim": claimOut{}, "Owner": ownerOut{}, "Renewal": renewalOut{}, "Settlement": settlementOut{},
		"Answer": Answer{}, "Record": Record{}, "Error": Error{},
		"Entry": Entry{}, "Run": Run{}, "Place": Place{}, "Kept": Kept{}, "Done": Done{},
	} {
		if got, want := schema(name), slices.Sorted(slices.Values(jsonFields(reflect.TypeOf(written)))); !slices.Equal(got, want) {
			t.Errorf("the schema %s has %v; the code has %v", name, got, want)
		}
	}
	for call, read := range map[string]func(string) error{
		"Claim": func(element string) error { _, err := ReadClaims([]byte(`{"claims":[` + element + `]}`)); return err },
		"Renewal": func(element string) error {
			_, err := ReadRenewals([]byte(`{"renewals":[` + element + `]}`))
			return err
		},
		"Settlement": func(element string) error {
			_, err := ReadSettlements([]byte(`{"settlements":[` + element + `]}`))
			return err
		},
	} {
		for _, field := range schema(call) {
			if err := read(`{"` + field + `":null}`); err != nil && strings.Contains(err.Error(), "unknown") {
				t.Errorf("%s.%s is in the document and is not read: %v", call, field, err)
			}
		}
		if err := read(`{"tokens":null}`); err == nil || !strings.Contains(err.Error(), `the field "tokens" is unknown`) {
			t.Errorf("%s with an unknown field: %v", call, err)
		}
	}
	enum := func(schema, field string) []string {
		return slices.Sorted(slices.Values(d.Components.Schemas[schema].Properties[field].Enum))
	}
	types := []string{Invalid}
	for _, e := range errorTypes {
		types = append(types, e.name)
	}
	for _, e := range []struct {
		schema, field string
		want          []string
	}{
		{"Claim", "mode", slices.Collect(maps.Keys(modes))},
		{"Settlement", "outcome", slices.Collect(maps.Keys(outcomes))},
		{"Answer", "state", slices.Collect(maps.Values(states))},
		{"Error", "type", types},
	} {
		if got := enum(e.schema, e.field); !slices.Equal(got, slices.Sorted(slices.Values(e.want))) {
			t.Errorf("%s.%s can be %v; the code has %v", e.schema, e.field, got, e.want)
		}
	}
}

func jsonFields(t reflect.Type) (names []string) {
	for f := range t.Fields() {
		if f.Anonymous {
			names = append(names, jsonFields(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}
