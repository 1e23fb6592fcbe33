// racecheck: which barrier patterns does it follow?
#include <cstdio>
#include <cstdint>
typedef uint32_t u32; typedef uint64_t u64;
__device__ u32 sa(const void*p){return (u32)__cvta_generic_to_shared(p);}
__device__ void init(u32 b,u32 n){asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"::"r"(b),"r"(n):"memory");}
__device__ void arrive(u32 b){asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"::"r"(b):"memory");}
__device__ void arrive_tx(u32 b,u32 n){asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"::"r"(b),"r"(n):"memory");}
__device__ void wait(u32 b,u32 p){asm volatile("{.reg .pred d;\nW: mbarrier.try_wait.parity.shared::cta.b64 d,[%0],%1;\n@d bra D;\nbra W;\nD:}"::"r"(b),"r"(p):"memory");}
__device__ void bulk(u32 to,const void*from,u32 n,u32 b){asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0],[%1],%2,[%3];"::"r"(to),"l"(from),"r"(n),"r"(b):"memory");}
__device__ void sts(u32 a,float v){asm volatile("st.shared.f32 [%0],%1;"::"r"(a),"f"(v):"memory");}
__device__ float lds(u32 a){float v;asm volatile("ld.shared.f32 %0,[%1];":"=f"(v):"r"(a):"memory");return v;}
// V 0: each lane arrives, both sides. 1: consumer elects. 2: producer elects too. 3: each lane, with a bulk copy on the same barrier. 4: as 3, consumer elects, own barrier for stores
// 5: as 1, consumers are 8 warps. 6: as 3 with 8 consumer warps electing (as in the kernel) 7: own barrier, 8 consumer warps electing
template<int V> __global__ void k(const float*in,float*out,int tiles){
  __shared__ __align__(128) float data[2][32]; __shared__ __align__(128) float big[2][32]; __shared__ __align__(8) u64 bars[6];
  constexpr int CW = V>=5?8:1; constexpr bool TX=V==3||V==4||V==6||V==7, OWN=V==4||V==7, ELECT=V==1||V==2||V>=4;
  u32 w=threadIdx.x/32,l=threadIdx.x%32; u32 b=sa(bars);
  if(threadIdx.x==0){for(int i=0;i<2;i++){init(b+8*i,V==2?1:32);init(b+16+8*i,ELECT?CW:32*CW);init(b+32+8*i,1);}asm volatile("fence.proxy.async;":::"memory");}
  __syncthreads();
  if(w==0){u32 st=0,ph=0; for(int t=0;t<tiles;t++){float v=in[t*32+l]; wait(b+16+8*st,ph^1); sts(sa(&data[st][l]),v);
      if(V==2){__syncwarp(); if(l==0)arrive(b+8*st);} else if(TX&&!OWN){ if(l==0){arrive_tx(b+8*st,128);bulk(sa(big[st]),in+t*32,128,b+8*st);} else arrive(b+8*st);} else arrive(b+8*st);
      if(OWN&&l==0){arrive_tx(b+32+8*st,128);bulk(sa(big[st]),in+t*32,128,b+32+8*st);}
      ph^=st; st^=1;}}
  else if(w<=CW){u32 st=0,ph=0;float s=0; for(int t=0;t<tiles;t++){ wait(b+8*st,ph); if(OWN)wait(b+32+8*st,ph); s+=lds(sa(&data[st][31-l]));
      if(ELECT){__syncwarp(); if(l==0)arrive(b+16+8*st);} else arrive(b+16+8*st);
      ph^=st; st^=1;}
      out[(w-1)*32+l]=s;}
}
int main(int c,char**v){float*in,*out;cudaMalloc(&in,1<<16);cudaMalloc(&out,1<<16);cudaMemset(in,0,1<<16);
 int which=atoi(v[1]);
#define R(V) if(which==V)k<V><<<1,288>>>(in,out,32);
 R(0)R(1)R(2)R(3)R(4)R(5)R(6)R(7)
 printf("%d %s\n",which,cudaGetErrorString(cudaDeviceSynchronize()));}
