// Package operators has the types of the operators' API and a client of it. The
// server serves these types, so they cannot differ from what it says; the contract
// is docs/protocol.md. The package needs no part of the server.
//
// # Calls
//
// A Client is one server's, and safe for concurrent use. Its calls are grouped by
// their noun: Pools.Get, Pools.Put, Batches.List, Batches.Create, Tasks.Why. Each
// takes a context, which bounds the call with all its repetitions.
//
// Lists are iterators that ask for page after page, up to 1000 entries each, as
// the loop goes on; a loop that ends early asks for no more. An error ends the loop:
//
//	for task, err := range c.Tasks.List(ctx, operators.TaskFilter{Batch: 7}) {
//		if err != nil {
//			return err
//		}
//		...
//	}
//
// Operations without a method, such as the exports of lists, go through Call, Do, List and
// Copy, which know requests and leave what is in the answers to their callers.
//
// # Errors
//
// A refusal is a *Problem, with a stable Code; where nothing answered it is a
// *LostError. Lost says that a call may have been done though its answer did not
// arrive, Transient that a reading may succeed later.
//
// # What is sent again
//
// A call that only reads, and one that creates under an Idempotency-Key, is sent
// again when the connection or the answer is lost, and when the server says that it
// is busy or cannot be reached (429, 502, 503, 504): up to Config.Tries times, with
// pauses that double from 0.5 s to 8 s, or as long as the server asks, at most 8 s.
// Batches.Create, Devices.Create and Tokens.Create make a key of their own for each call, so
// each is done once however often it is sent; WithKey gives one that outlives the
// process. A secret is in the first answer alone: where that is lost, the token of
// the second is empty. Anything else that changes is sent once: whether to send
// it again after a loss is the caller's to decide. Where no server listens at the
// first try, nothing is sent again.
//
// Events.Follow gives each event once and in order, and goes on where it was when
// the connection is lost.
package operators
