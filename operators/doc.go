// Package operators has the types of the operators' API and a client for that API. The server uses the same types, so the
// types and the responses cannot differ. The contract is docs/protocol.md. The package imports no part of the server, except
// the definition of policies (limits/policy), which needs no server.
//
// # Calls
//
// A Client talks to one server and is safe for concurrent use. Its calls are grouped by resource: Pools.Get, Pools.Put,
// Batches.List, Batches.Create, Tasks.Why. Each call takes a context, which limits the whole call, including all repetitions.
// Every operation of the API has a call. A call is a method, or a field of the type Call, CallWith, Remove, List or ListOf.
//
// Lists are iterators. They request one page after the other, at most 1000 entries a page, as the loop advances. A loop
// that ends early requests no other page. An error ends the loop:
//
//	for task, err := range c.Tasks.List(ctx, operators.TaskFilter{Batch: 7}) {
//		if err != nil {
//			return err
//		}
//		...
//	}
//
// Client.Call, Do, List and Copy send any other request, such as a request for a list as CSV.
//
// # Errors
//
// If the server refuses a call, the error is a *Problem with a stable Code. If no response arrived, the error is a
// *LostError. IsResponseLost reports whether a call may have been done although its response did not arrive. IsTransient
// reports whether a read may succeed later. If the context ends before the response begins, the error is that of the context,
// and IsResponseLost returns false, although the call may have been done.
//
// # Which requests are sent again
//
// Three kinds of requests are repeatable:
//   - requests that only read;
//   - requests that create something under an Idempotency-Key;
//   - requests that the server executes only once (Request.Idempotent): Peek, Return, and Take and TakeEach with IDs.
//
// A repeatable request is sent again in these cases:
//   - the connection or the response was lost;
//   - the server is busy or cannot be reached (429, 502, 503, 504);
//   - the server did not get the whole body;
//   - the first request with the same key is still in progress.
//
// It is sent at most Config.MaxTries times. The pauses double from 0.5 s to 8 s. If the server asks for a longer pause, the
// client waits that long, but at most 8 s. If no server listens at the first try, nothing is sent again.
//
// Batches.Create, Devices.Create and Tokens.Create make a new key for each call, so each call takes effect once even if it
// is sent several times. WithKey sets a key that a later process can use again. Only the first response contains a secret:
// if that response is lost, the token in the second response is empty.
//
// Any other call that changes something is sent once. After a loss, its caller decides whether to send it again;
// Leases.WaitForSlot decides this itself.
//
// Events.Follow passes each event once and in order. After a lost connection it resumes at the last event that it passed.
package operators
