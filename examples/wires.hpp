#pragma once

#include <outerloop/codec.hpp>

#include <functional>
#include <map>
#include <string>

/// What --wire offers, by name.
inline const std::map<std::string, std::function<std::shared_ptr<const outerloop::Codec>()>> wires{
    {"fp32", outerloop::codecs::fp32},
    {"fp16", outerloop::codecs::fp16},
    {"bf16", outerloop::codecs::bf16},
    {"int8", [] { return outerloop::codecs::int8(); }},
    {"fp8-e4m3", [] { return outerloop::codecs::fp8_e4m3(); }},
    {"int4", [] { return outerloop::codecs::int4(); }},
    {"nf4", [] { return outerloop::codecs::nf4(); }},
    {"e2m1", [] { return outerloop::codecs::e2m1(); }},
    {"e3m0", [] { return outerloop::codecs::e3m0(); }},
    {"top-k", [] { return outerloop::codecs::top_k(); }}};
