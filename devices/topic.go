package devices

import "strings"

const (
	topicPrefix  = "fleet/v1/"
	reportSuffix = "/report"
	replySuffix  = "/reply"
)

// Group is the shared subscription group of the dispatcher's replicas.
const Group = "dispatcher"

// ReportFilter matches the report topics of all devices.
const ReportFilter = topicPrefix + "+" + reportSuffix

// ReportTopic is where a device publishes its reports.
func ReportTopic(id ID) string { return topicPrefix + string(id) + reportSuffix }

// ReplyTopic is where a device receives its replies.
func ReplyTopic(id ID) string { return topicPrefix + string(id) + replySuffix }

// SharedReportFilter is ReportFilter shared by the members of group: each
// report reaches one of them.
func SharedReportFilter(group string) string { return "$share/" + group + "/" + ReportFilter }

// ParseReportTopic returns the device of a report topic. The error is an
// *Error with CodeInvalidTopic or CodeInvalidDeviceID.
func ParseReportTopic(topic string) (ID, error) { return parseTopic(topic, reportSuffix) }

// ParseReplyTopic returns the device of a reply topic, as ParseReportTopic.
func ParseReplyTopic(topic string) (ID, error) { return parseTopic(topic, replySuffix) }

func parseTopic(topic, suffix string) (ID, error) {
	rest, hasPrefix := strings.CutPrefix(topic, topicPrefix)
	id, hasSuffix := strings.CutSuffix(rest, suffix)
	if !hasPrefix || !hasSuffix {
		return "", &Error{ReasonInvalid, CodeInvalidTopic, "topic: must be " + topicPrefix + "{device}" + suffix}
	}
	return ParseID(id)
}
