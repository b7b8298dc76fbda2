// Ending is what may end a call early.
export class Ending {
  ended = false;

  // end ends it, once.
  end(reason) {
    if (this.ended) return;
    this.ended = true;
    this.reason = reason;
    this.stopping?.(reason);
  }

  // stop says what is to be called at the end: of what the caller waits for now.
  stop(stopping) {
    this.stopping = stopping;
    if (this.ended) stopping(this.reason);
  }
}
