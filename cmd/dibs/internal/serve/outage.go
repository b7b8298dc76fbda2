package serve

import "log/slog"

type outage struct{ log *slog.Logger }

func (o *outage) Failed(err error) { o.log.Warn("the store does not answer", "error", err) }
func (o *outage) Answered()        {}
