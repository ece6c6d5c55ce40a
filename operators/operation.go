package operators

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"reflect"
	"strconv"
	"strings"
)

// Operation is a row of the table of operations. Each row is the struct tag of a field of Pools, Batches or another group of calls of a
// Client. The server makes its routes, their roles and the OpenAPI document from the table, and a Client makes its calls from it. If
// only a method calls the operation (with Client.prepareRequest), the row is in a field without a name.
type Operation struct {
	Method   string // tag op, before the path
	Path     string // with its parameters in braces, such as /v1/pools/{pool}
	ID       string // name in the OpenAPI document
	Summary  string // tag doc
	Role     string // the lowest role that may use it
	Scope    string // where the pool of the operation is found, see scopeOf
	Status   int    // HTTP status of success; without the tag status it is 200
	Callers  bool   // the role caller may use it, too, for the pools or limit sets of its token
	Once     bool   // accepts an Idempotency-Key: a repeated request takes effect once
	IsLogged bool   // what it changes is written to the audit log; the tag log:"none" says that nothing is
}

// readOperation returns the operation in tag, a row of the table. ok is false if tag contains no row. group is the tag of the row's group of
// calls.
func readOperation(tag, group reflect.StructTag) (operation Operation, ok bool) {
	method, path, ok := strings.Cut(tag.Get("op"), " ")
	status, _ := strconv.Atoi(tag.Get("status")) // an absent status means 200
	return Operation{
		Method: method, Path: path, ID: tag.Get("id"), Summary: tag.Get("doc"), Role: tag.Get("role"), Scope: scopeOf(path, tag, group), Status: cmp.Or(status, http.StatusOK),
		Callers: tag.Get("callers") != "", Once: tag.Get("once") != "", IsLogged: method != http.MethodGet && tag.Get("log") != "none",
	}, ok
}

// Operations returns the table of operations. The key of an operation is its ID.
func Operations() map[string]Operation {
	c := &Client{}
	c.initializeCalls()
	return c.table
}

// visitOperations calls visit with each row of the table, and with the field of c that has the row.
func (c *Client) visitOperations(visit func(row Operation, field reflect.Value)) {
	for group, calls := range reflect.ValueOf(c).Elem().Fields() {
		if calls.Kind() != reflect.Struct {
			continue
		}
		for field, value := range calls.Fields() {
			if row, ok := readOperation(field.Tag, group.Tag); ok {
				visit(row, value)
			}
		}
	}
}

// initializeCalls sets each call of the client to a function that sends the request of its operation. It also sets c.table.
func (c *Client) initializeCalls() {
	c.table = map[string]Operation{}
	c.visitOperations(func(row Operation, field reflect.Value) {
		c.table[row.ID] = row
		if field.CanSet() {
			if call, ok := reflect.TypeAssert[interface{ initialize(*Client, Operation) }](field.Addr()); ok {
				call.initialize(c, row)
			}
		}
	})
}

// scopeOf returns the scope of an operation: where its pool or limit set is found. It is the tag `scope` of its row, else it is derived from path, else it is
// the tag `scope` of its group. The server uses only pool and set, to check the role caller.
//   - pool, set: the path parameter of this name;
//   - batch, task: the pool of the batch or the task whose id is in the path;
//   - input: the field pool of the input, without this field all pools;
//   - all: all pools, or all limit sets;
//   - none: the operation concerns neither pools nor limit sets.
func scopeOf(path string, row, group reflect.StructTag) string {
	switch scope := row.Get("scope"); {
	case scope != "":
		return scope
	case strings.Contains(path, "{pool}"):
		return "pool"
	case strings.Contains(path, "{set}"):
		return "set"
	}
	return group.Get("scope")
}

// PathOf returns the path of the operation with values in place of its parameters.
func (o Operation) PathOf(values ...string) string {
	segments := strings.Split(o.Path, "/")
	for i, segment := range segments {
		if strings.HasPrefix(segment, "{") && len(values) > 0 {
			segments[i], values = url.PathEscape(values[0]), values[1:]
		}
	}
	return strings.Join(segments, "/")
}

// prepareRequest returns the request of the operation with this ID. The arguments are those of Operation.newRequest.
func (c *Client) prepareRequest(ctx context.Context, id string, arguments ...any) Request {
	return c.table[id].newRequest(ctx, arguments...)
}

// newRequest returns the request with these arguments: first a value for each parameter of the path, then the input. An input of the type
// url.Values is the query. Any other input of a GET request becomes its query, and any other input of another request is its body.
func (o Operation) newRequest(ctx context.Context, arguments ...any) Request {
	count := strings.Count(o.Path, "{")
	values := make([]string, count)
	for i := range values {
		values[i] = fmt.Sprint(arguments[i])
	}
	request := Request{Method: o.Method, Path: o.PathOf(values...)}
	if o.Once {
		request.Key = idempotencyKey(ctx)
	}
	for _, input := range arguments[count:] {
		query, isQuery := input.(url.Values)
		switch {
		case isQuery:
			request.Query = query
		case o.Method == http.MethodGet:
			request.Query = queryParams(input)
		default:
			request.Body = input
		}
	}
	return request
}

// Call is an operation with one argument: the name or id of an object, or the input of the request.
type Call[Argument, Answer any] func(ctx context.Context, argument Argument) (Answer, error)

func (f *Call[Argument, Answer]) initialize(client *Client, operation Operation) {
	*f = func(ctx context.Context, argument Argument) (Answer, error) {
		return callJSON[Answer](ctx, client, operation.newRequest(ctx, argument))
	}
}

// CallWith is an operation on an object with a second argument: the input, or the number of a part of the object.
type CallWith[Key, Input, Answer any] func(ctx context.Context, key Key, input Input) (Answer, error)

func (f *CallWith[Key, Input, Answer]) initialize(client *Client, operation Operation) {
	*f = func(ctx context.Context, key Key, input Input) (Answer, error) {
		return callJSON[Answer](ctx, client, operation.newRequest(ctx, key, input))
	}
}

// Remove is an operation on an object. The response has no body.
type Remove[Key any] func(ctx context.Context, key Key) error

func (f *Remove[Key]) initialize(client *Client, operation Operation) {
	*f = func(ctx context.Context, key Key) error { return client.Do(ctx, operation.newRequest(ctx, key), nil) }
}

// List yields the entries of a list that match filter, page by page. It ends after an error.
type List[Filter, Entry any] func(ctx context.Context, filter Filter) iter.Seq2[Entry, error]

func (f *List[Filter, Entry]) initialize(client *Client, operation Operation) {
	*f = func(ctx context.Context, filter Filter) iter.Seq2[Entry, error] {
		return listEntries[Entry](ctx, client, operation.newRequest(ctx, filter))
	}
}

// ListOf yields the entries of a list that belongs to an object, page by page. It ends after an error.
type ListOf[Key, Filter, Entry any] func(ctx context.Context, key Key, filter Filter) iter.Seq2[Entry, error]

func (f *ListOf[Key, Filter, Entry]) initialize(client *Client, operation Operation) {
	*f = func(ctx context.Context, key Key, filter Filter) iter.Seq2[Entry, error] {
		return listEntries[Entry](ctx, client, operation.newRequest(ctx, key, filter))
	}
}

// All has no fields. It is passed to a list that has no filters, and to a call that needs no argument.
type All struct{}
