// Package oncerecord has the record that Once leaves. The clients of other languages read and
// write the same JSON.
package oncerecord

import (
	"encoding/json"
	"errors"
	"strings"
)

// Record is the outcome of a run. It has one of the fields.
type Record struct {
	// Value is the result.
	Value json.RawMessage `json:"value,omitempty"`
	// Error is the text of an error that is remembered.
	Error *string `json:"error,omitempty"`
	// NotKept says why the result could not be stored, although the run was done.
	NotKept *string `json:"not_kept,omitempty"`
}

// Max is how many bytes a record has at most that is read for a person.
const Max = 4 << 10

// maxWhy bounds NotKept, in bytes.
const maxWhy = 500

// Read reads a record. It returns an error for the record of another program.
func Read(data []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, err
	}
	if r.Value == nil && r.Error == nil && r.NotKept == nil {
		return Record{}, errors.New("it has neither a value nor an error")
	}
	return r, nil
}

// NotKept returns the record of a run whose result cannot be stored, for that reason.
func NotKept(why error) []byte {
	text := strings.TrimPrefix(why.Error(), "dibs: ")
	if len(text) > maxWhy {
		text = text[:maxWhy]
	}
	text = strings.ToValidUTF8(text, "")
	data, _ := json.Marshal(Record{NotKept: &text}) // a text can be written
	return data
}
