package dialect

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"
)

// An rpcCode is a code of gRPC.
type rpcCode struct {
	name   string
	status int // the HTTP status that is treated alike
}

// rpcCodes are the codes of gRPC (google.rpc.Code) with Connect's names for them.
var rpcCodes = []rpcCode{
	0: {"ok", 200}, 1: {"canceled", 500}, 2: {"unknown", 500}, 3: {"invalid_argument", 400},
	4: {"deadline_exceeded", 504}, 5: {"not_found", 404}, 6: {"already_exists", 400},
	7: {"permission_denied", 403}, 8: {"resource_exhausted", 429}, 9: {"failed_precondition", 400},
	10: {"aborted", 409}, 11: {"out_of_range", 400}, 12: {"unimplemented", 501}, 13: {"internal", 500},
	14: {"unavailable", 503}, 15: {"data_loss", 500}, 16: {"unauthenticated", 401},
}

// statusOfCode returns the HTTP status for a code of gRPC. An unknown or missing code is a failure.
func statusOfCode(code string) int {
	if n, err := strconv.Atoi(code); err == nil && n >= 0 && n < len(rpcCodes) {
		return rpcCodes[n].status
	}
	return http.StatusInternalServerError
}

// statusOfName is statusOfCode for a code by Connect's name.
func statusOfName(name string) int { return statusOfCode(strconv.Itoa(codeNamed(name))) }

// codeNamed returns the code by Connect's name; -1 if there is none.
func codeNamed(name string) int {
	return slices.IndexFunc(rpcCodes, func(c rpcCode) bool { return c.name == name })
}

// codeOf returns the code of a refusal.
func codeOf(r Refusal) int {
	name := cmp.Or(r.Code, "invalid_argument")
	if r.Code == "" && (r.Status >= 500 || r.Status == http.StatusRequestTimeout) {
		name = "unavailable"
	}
	return codeNamed(name)
}
