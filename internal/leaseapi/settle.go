package leaseapi

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/dibs-go/dibs/store"
)

var outcomes = map[string]store.Outcome{"release": store.Release, "keep": store.Keep, "abandon": store.Abandon, "undo": store.Undo}

// ReadRenewals reads the body of a renewal.
func ReadRenewals(body []byte) (r []store.Renewal, err error) {
	if err = read(body, fields{{"renewals", list("renewals", &r, readRenewal)}}); err == nil && r == nil {
		err = errors.New("renewals is missing")
	}
	return r, err
}

func readRenewal(d *json.Decoder, r *store.Renewal) error {
	var k keyed
	var ttl *int64
	if err := object(d, k.fields(field{"ttl_ms", &ttl}, field{"progress", &r.Progress})); err != nil {
		return err
	}
	r.TTL = DefaultTTL
	if ttl != nil {
		r.TTL = fromMillis(*ttl)
	}
	var err error
	r.Key, r.Token, err = k.values(true)
	return err
}

// ReadSettlements reads the body of a settlement.
func ReadSettlements(body []byte) (s []store.Settlement, err error) {
	if err = read(body, fields{{"settlements", list("settlements", &s, readSettlement)}}); err == nil && s == nil {
		err = errors.New("settlements is missing")
	}
	return s, err
}

func readSettlement(d *json.Decoder, s *store.Settlement) error {
	var k keyed
	var outcome *string
	var retention *int64
	if err := object(d, k.fields(field{"outcome", &outcome}, field{"data", (*octets)(&s.Data)}, field{"retention_ms", &retention})); err != nil {
		return err
	}
	if outcome != nil {
		o, ok := outcomes[*outcome]
		if !ok {
			return fmt.Errorf(".outcome: it is %s; it must be release, keep, abandon or undo", quote(*outcome))
		}
		s.Outcome = o
	}
	if s.Outcome != store.Keep && (s.Data != nil || retention != nil) {
		return errors.New(".outcome: only keep has data and retention_ms")
	}
	if s.Outcome == store.Keep {
		s.Retention = DefaultRetention
	}
	if retention != nil {
		s.Retention = fromMillis(*retention)
	}
	var err error
	s.Key, s.Token, err = k.values(true)
	return err
}

// The elements as they are written.
type (
	renewalOut struct {
		elementOut
		TTL      int64   `json:"ttl_ms"`
		Progress *[]byte `json:"progress,omitempty"` // nil and empty differ
	}
	settlementOut struct {
		elementOut
		Outcome   string `json:"outcome"`
		Data      []byte `json:"data,omitempty"`
		Retention int64  `json:"retention_ms,omitempty"`
	}
)

// WriteRenewals writes the body of a renewal.
func WriteRenewals(renewals []store.Renewal) []byte {
	out := make([]renewalOut, len(renewals))
	for i, r := range renewals {
		out[i] = renewalOut{elementOut: elementOf(r.Key, r.Token), TTL: millis(r.TTL)}
		if r.Progress != nil {
			out[i].Progress = &r.Progress
		}
	}
	return marshal(struct {
		Renewals []renewalOut `json:"renewals"`
	}{out})
}

// WriteSettlements writes the body of a settlement.
func WriteSettlements(settlements []store.Settlement) []byte {
	out := make([]settlementOut, len(settlements))
	for i, s := range settlements {
		out[i] = settlementOut{elementOut: elementOf(s.Key, s.Token)}
		for name, o := range outcomes {
			if o == s.Outcome {
				out[i].Outcome = name
			}
		}
		if s.Outcome == store.Keep {
			out[i].Data, out[i].Retention = s.Data, millis(s.Retention)
		}
	}
	return marshal(struct {
		Settlements []settlementOut `json:"settlements"`
	}{out})
}
